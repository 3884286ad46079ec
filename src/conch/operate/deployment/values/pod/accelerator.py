"""GPUs and other devices of a pod."""

from typing import Annotated, Literal

from msgspec import Meta

from conch.operate.deployment.values.section import Count, LabelKey, LabelValue, ObjectName, PositiveCount, Section


class ParallelismValues(Section, frozen=True):
    """How a model is split over the GPUs of one pod."""

    tensor: Annotated[PositiveCount, Meta(description="Tensor parallelism")] = 1
    pipeline: Annotated[PositiveCount, Meta(description="Pipeline parallelism")] = 1


class AcceleratorValues(Section, frozen=True):
    """The devices of each pod."""

    count: Annotated[
        Count,
        Meta(
            description="Devices of each pod; 0: tensor × pipeline parallelism, if that is over 1 or products are given"
        ),
    ] = 0
    resource: Annotated[
        LabelKey,
        Meta(min_length=1, description="Resource of the device plug-in, such as nvidia.com/gpu, aws.amazon.com/neuron"),
    ] = "nvidia.com/gpu"
    products: Annotated[
        tuple[LabelValue, ...], Meta(description="Products that fit, such as NVIDIA-A10G; empty: any")
    ] = ()
    product_label: Annotated[
        LabelKey, Meta(description="Label of nodes with the product; GKE: cloud.google.com/gke-accelerator")
    ] = "nvidia.com/gpu.product"
    sharing: Annotated[
        Literal["none", "time-slicing", "mps", "mig", "all-devices"],
        Meta(
            description="time-slicing, mps: shares, resource `….shared`. mig: parts of migProfile. all-devices: "
            "all GPUs of the node, unknown to the scheduler: NVIDIA_VISIBLE_DEVICES=all"
        ),
    ] = "none"
    mig_profile: Annotated[
        str, Meta(pattern=r"^([0-9]+g\.[0-9]+gb(\.me)?)?$", description="Profile of MIG, such as 1g.10gb")
    ] = ""
    runtime_class_name: Annotated[
        ObjectName, Meta(description="RuntimeClass of the pods, such as nvidia where it is not the node's default")
    ] = ""
    tolerate: Annotated[
        bool, Meta(description="Tolerate the taint that GPU nodes have: the resource's name, effect NoSchedule")
    ] = True

    @property
    def is_shared(self) -> bool:
        """Whether several pods have one device, as the device plug-in shares it."""
        return self.sharing in ("time-slicing", "mps")
