"""A model's configuration as the server uses it: the part of Triton's `ModelConfig` message that something here reads.

`repository/` makes these values from `config.pbtxt`, from a JSON override or from the model itself; nothing else does.
The whole message, with every field a client may ask to see, rides along as `document`.
Datatypes are wire names (`FP32`, `BYTES`); dims are without the batch dimension, -1 meaning any size.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

ENSEMBLE_PLATFORM = "ensemble"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One declared input or output.

    `reshape` is the shape the backend wants instead of `dims`, None where they agree. `label_filename` is for outputs,
    the other flags are for inputs.
    """

    name: str
    datatype: str
    dims: tuple[int, ...]
    reshape: tuple[int, ...] | None = None
    optional: bool = False
    allow_ragged_batch: bool = False
    label_filename: str = ""


class BatchInputKind(Enum):
    """What a model is told of the requests in its batch; values are those of the configuration without `BATCH_`."""

    ELEMENT_COUNT = "ELEMENT_COUNT"
    ACCUMULATED_ELEMENT_COUNT = "ACCUMULATED_ELEMENT_COUNT"
    ACCUMULATED_ELEMENT_COUNT_WITH_ZERO = "ACCUMULATED_ELEMENT_COUNT_WITH_ZERO"
    MAX_ELEMENT_COUNT_AS_SHAPE = "MAX_ELEMENT_COUNT_AS_SHAPE"
    ITEM_SHAPE = "ITEM_SHAPE"
    ITEM_SHAPE_FLATTEN = "ITEM_SHAPE_FLATTEN"


@dataclass(frozen=True, slots=True)
class BatchInput:
    """`batch_input`: inputs of the model that are not sent but made, from the shapes of the input `source`."""

    kind: BatchInputKind
    targets: tuple[str, ...]
    datatype: str
    source: str


@dataclass(frozen=True, slots=True)
class BatchOutput:
    """`batch_output`: outputs whose parts have the shapes of the input `source` (BATCH_SCATTER_WITH_INPUT_SHAPE)."""

    targets: tuple[str, ...]
    source: str


class TimeoutAction(Enum):
    """What becomes of a request that waited too long."""

    REJECT = "REJECT"  # answered with UNAVAILABLE
    DELAY = "DELAY"  # served after all that have not timed out


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """Bounds of one priority level's queue; 0 means no bound. Times are microseconds."""

    timeout_action: TimeoutAction = TimeoutAction.REJECT
    default_timeout_us: int = 0
    allow_timeout_override: bool = False
    max_queue_size: int = 0


@dataclass(frozen=True, slots=True)
class DynamicBatching:
    """`dynamic_batching`: how requests are put together.

    `max_queue_delay_us` is the longest that the oldest request waits for company.
    """

    preferred_batch_sizes: tuple[int, ...] = ()
    max_queue_delay_us: int = 0
    preserve_ordering: bool = False
    priority_levels: int = 0
    default_priority_level: int = 0
    default_queue_policy: QueuePolicy = field(default_factory=QueuePolicy)
    priority_queue_policies: Mapping[int, QueuePolicy] = field(default_factory=dict)


class ControlKind(Enum):
    """What a control tensor tells a model about the sequence that a request belongs to."""

    START = "CONTROL_SEQUENCE_START"
    END = "CONTROL_SEQUENCE_END"
    READY = "CONTROL_SEQUENCE_READY"  # false in the requests that only fill up a batch
    CORRID = "CONTROL_SEQUENCE_CORRID"


@dataclass(frozen=True, slots=True)
class SequenceControl:
    """One control tensor; `false` and `true` are what it holds, in wire form. CORRID has neither: it holds the id."""

    kind: ControlKind
    name: str
    datatype: str
    false: bytes = b""
    true: bytes = b""


@dataclass(frozen=True, slots=True)
class SequenceState:
    """Implicit state: what a model gives as output `output_name` comes back as input `input_name` in the next request.

    A sequence begins with a state of `initial_dims`: the bytes of the file `initial_file` below `initial_state/`, or
    zeros if there is no such file.
    """

    input_name: str
    output_name: str
    datatype: str
    dims: tuple[int, ...]
    initial_dims: tuple[int, ...]
    initial_file: str = ""


@dataclass(frozen=True, slots=True)
class SequenceBatching:
    """`sequence_batching`: requests of one sequence go to one instance, one after the other.

    `oldest` tells the strategies apart. Of oldest are `max_candidates` (0: as many as the batch size), the preferred
    sizes and the order; of direct is the slot utilization. An `iterative` model is given a request until it answers it.
    """

    oldest: bool = False
    max_candidates: int = 0
    preferred_batch_sizes: tuple[int, ...] = ()
    preserve_ordering: bool = False
    minimum_slot_utilization: float = 0.0
    max_queue_delay_us: int = 0
    max_idle_us: int = 1_000_000
    iterative: bool = False
    controls: tuple[SequenceControl, ...] = ()  # in the order of ControlKind
    states: tuple[SequenceState, ...] = ()


class InstanceKind(Enum):
    """Where an instance runs. AUTO never leaves `repository/`: it is resolved to GPU or CPU at load."""

    AUTO = "KIND_AUTO"
    CPU = "KIND_CPU"
    GPU = "KIND_GPU"
    MODEL = "KIND_MODEL"  # the model itself decides


@dataclass(frozen=True, slots=True)
class ResourceNeed:
    """Units of a resource that an execution needs, on its device or, if `shared`, of those that all devices have."""

    name: str
    count: int
    shared: bool = False  # `global` in the configuration


@dataclass(frozen=True, slots=True)
class RateLimit:
    """`rate_limiter` of an instance group: what an execution needs, and how often its turn comes: 2 is half of 1."""

    resources: tuple[ResourceNeed, ...] = ()
    priority: int = 0  # 0 means 1


@dataclass(frozen=True, slots=True)
class InstanceGroup:
    """`count` instances of one kind, on each of `gpus` if there are any."""

    name: str
    kind: InstanceKind
    count: int = 1
    gpus: tuple[int, ...] = ()
    passive: bool = False
    rate: RateLimit = field(default_factory=RateLimit)


class VersionPolicyKind(Enum):
    """Which version directories are served."""

    LATEST = "latest"
    ALL = "all"
    SPECIFIC = "specific"


@dataclass(frozen=True, slots=True)
class VersionPolicy:
    """`latest` uses `num_versions`, `specific` uses `versions`."""

    kind: VersionPolicyKind = VersionPolicyKind.LATEST
    num_versions: int = 1
    versions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class EnsembleStep:
    """One stage: its inputs and outputs (keys) are tied to the ensemble's own tensors (values)."""

    model_name: str
    model_version: int  # -1: the newest
    input_map: Mapping[str, str]
    output_map: Mapping[str, str]
    model_namespace: str = ""  # "": the ensemble's own goes before others


@dataclass(frozen=True, slots=True)
class WarmupTensor:
    """One input of a warm-up request: the bytes of a file below `warmup/` if it has a name, else random or zeros."""

    name: str
    datatype: str
    dims: tuple[int, ...]
    filename: str = ""
    random: bool = False


@dataclass(frozen=True, slots=True)
class Warmup:
    """One `model_warmup` request, sent `count` times to every instance before the model is ready."""

    name: str
    batch_size: int
    count: int
    inputs: tuple[WarmupTensor, ...]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One model's configuration, complete: names, kinds and defaults are filled in.

    `document` is the whole `inference.ModelConfig` message as JSON values under proto field names: what the config
    endpoint shows and what a Python model gets as `model_config`. Exactly one of `dynamic_batching`,
    `sequence_batching` and `ensemble_steps` may be set; none means the default scheduler.
    """

    name: str
    backend: str
    platform: str
    max_batch_size: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    instance_groups: tuple[InstanceGroup, ...] = ()
    version_policy: VersionPolicy = field(default_factory=VersionPolicy)
    dynamic_batching: DynamicBatching | None = None
    sequence_batching: SequenceBatching | None = None
    ensemble_steps: tuple[EnsembleStep, ...] = ()
    max_inflight_requests: int = 0  # of an ensemble, at each of its steps; 0 is no limit
    decoupled: bool = False
    response_cache: bool = False  # whether answers may come from the cache
    default_model_filename: str = ""
    # Compute capability, as "9.0" → the file for GPUs of that kind.
    cc_model_filenames: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    metric_tags: Mapping[str, str] = field(default_factory=dict)
    warmups: tuple[Warmup, ...] = ()
    batch_inputs: tuple[BatchInput, ...] = ()
    batch_outputs: tuple[BatchOutput, ...] = ()
    document: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_ensemble(self) -> bool:
        """Whether this model is a graph of other models."""
        return self.platform == ENSEMBLE_PLATFORM

    @property
    def ragged_inputs(self) -> frozenset[str]:
        """The inputs whose shapes may differ between the requests of a batch."""
        if self.max_batch_size == 0:
            return frozenset()
        return frozenset(spec.name for spec in self.inputs if spec.allow_ragged_batch)

    def input(self, name: str) -> TensorSpec | None:
        """Return the declared input of that name."""
        return next((spec for spec in self.inputs if spec.name == name), None)

    def output(self, name: str) -> TensorSpec | None:
        """Return the declared output of that name."""
        return next((spec for spec in self.outputs if spec.name == name), None)
