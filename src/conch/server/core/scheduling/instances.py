"""Instances of instance groups: names, kinds and devices (Triton's model configuration, "Instance Groups")."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from conch.domain.model_config import InstanceGroup, InstanceKind, RateLimit
from conch.machine.accelerators.gpus import Gpu
from conch.server.backends.base import Backend, Instance, InstancePlan, ModelSource


def make_instances(backend: Backend, source: ModelSource, gpus: Sequence[Gpu] = ()) -> list[Instance]:
    """Return every instance that the configuration requests, on `gpus` or the CPU; none is started."""
    placements = [place for group in source.config.instance_groups for place in _placements(group)]
    return [
        backend.instance(InstancePlan(source_on(source, gpus, kind, device), name, kind, device, len(placements), rate))
        for name, kind, device, rate in placements
    ]


def rearranged(
    backend: Backend, source: ModelSource, gpus: Sequence[Gpu], present: Iterable[Instance]
) -> list[Instance]:
    """Return the instances that the configuration requests now; those of them that are `present` are reused."""
    instance_of = {(one.plan.name, one.plan.kind, one.plan.device_id, one.plan.rate): one for one in present}
    return [
        instance_of.get((one.plan.name, one.plan.kind, one.plan.device_id, one.plan.rate), one)
        for one in make_instances(backend, source, gpus)
    ]


def source_on(source: ModelSource, gpus: Sequence[Gpu], kind: InstanceKind, device: int) -> ModelSource:
    """Return the source with the file that `cc_model_filenames` names for the compute capability of the device."""
    if kind is not InstanceKind.GPU:
        return source
    filenames = source.config.cc_model_filenames
    capability = next(("{}.{}".format(*gpu.compute_capability) for gpu in gpus if gpu.number == device), "")
    if capability not in filenames:
        return source
    return replace(source, config=replace(source.config, default_model_filename=filenames[capability]))


def _placements(group: InstanceGroup) -> Iterator[tuple[str, InstanceKind, int, RateLimit]]:
    """Yield name, kind, device id and rate limit: `<group>_<i>`, on GPUs `count` of them on each, numbered through."""
    if group.passive:  # neither loaded nor scheduled
        return
    devices = group.gpus if group.kind is InstanceKind.GPU else (0,)
    number = 0
    for device in devices:
        for _ in range(group.count):
            yield f"{group.name}_{number}", group.kind, device, group.rate
            number += 1
