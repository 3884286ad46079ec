# Compiled by mypyc in wheels.
"""A model's configuration: the parts of Triton's `ModelConfig` message that the server uses.

`repository/` makes these values from `config.pbtxt`, from a JSON override or from the model. The attribute `document`
has the complete message, for the config endpoint. Datatypes are wire names (`FP32`, `BYTES`); dims are without the
batch dimension, and -1 is any size.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from conch.domain.degradations import Degradation

ENSEMBLE_PLATFORM: Final = "ensemble"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One declared input or output.

    `reshape` is the shape for the backend if it differs from `dims`. `label_filename` is for outputs, `optional` and
    `allow_ragged_batch` are for inputs.
    """

    name: str
    datatype: str
    dims: tuple[int, ...]
    reshape: tuple[int, ...] | None = None
    optional: bool = False
    allow_ragged_batch: bool = False
    label_filename: str = ""


class BatchInputKind(Enum):
    """How a batch input is computed from the requests; the configuration's names without `BATCH_`."""

    ELEMENT_COUNT = "ELEMENT_COUNT"
    ACCUMULATED_ELEMENT_COUNT = "ACCUMULATED_ELEMENT_COUNT"
    ACCUMULATED_ELEMENT_COUNT_WITH_ZERO = "ACCUMULATED_ELEMENT_COUNT_WITH_ZERO"
    MAX_ELEMENT_COUNT_AS_SHAPE = "MAX_ELEMENT_COUNT_AS_SHAPE"
    ITEM_SHAPE = "ITEM_SHAPE"
    ITEM_SHAPE_FLATTEN = "ITEM_SHAPE_FLATTEN"


@dataclass(frozen=True, slots=True)
class BatchInput:
    """`batch_input`: inputs of the model that are computed from the shapes of the input `source`."""

    kind: BatchInputKind
    targets: tuple[str, ...]
    datatype: str
    source: str


@dataclass(frozen=True, slots=True)
class BatchOutput:
    """`batch_output`: outputs that are split by the shapes of the input `source` (BATCH_SCATTER_WITH_INPUT_SHAPE)."""

    targets: tuple[str, ...]
    source: str


class TimeoutAction(Enum):
    """The consequence of a queue timeout."""

    REJECT = "REJECT"  # the request fails with UNAVAILABLE
    DELAY = "DELAY"  # the request is served after all that have not timed out


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """Bounds of one priority level's queue; 0 means no bound. Times are microseconds."""

    timeout_action: TimeoutAction = TimeoutAction.REJECT
    default_timeout_us: int = 0
    allow_timeout_override: bool = False
    max_queue_size: int = 0


@dataclass(frozen=True, slots=True)
class DynamicBatching:
    """`dynamic_batching`. The oldest request waits `max_queue_delay_us` at most for a larger batch."""

    preferred_batch_sizes: tuple[int, ...] = ()
    max_queue_delay_us: int = 0
    preserve_ordering: bool = False
    priority_levels: int = 0
    default_priority_level: int = 0
    default_queue_policy: QueuePolicy = field(default_factory=QueuePolicy)
    priority_queue_policies: Mapping[int, QueuePolicy] = field(default_factory=dict)


class ControlKind(Enum):
    """The value of a control tensor of a sequence."""

    START = "CONTROL_SEQUENCE_START"
    END = "CONTROL_SEQUENCE_END"
    READY = "CONTROL_SEQUENCE_READY"  # false for the padding of a batch
    CORRID = "CONTROL_SEQUENCE_CORRID"


@dataclass(frozen=True, slots=True)
class SequenceControl:
    """One control tensor. `false` and `true` are its values in wire form; CORRID has the correlation ID instead."""

    kind: ControlKind
    name: str
    datatype: str
    false: bytes = b""
    true: bytes = b""


@dataclass(frozen=True, slots=True)
class SequenceState:
    """Implicit state: the output `output_name` is the input `input_name` of the sequence's next request.

    The initial state has the shape `initial_dims` and the bytes of the file `initial_state/<initial_file>`, or zeros
    without a file.
    """

    input_name: str
    output_name: str
    datatype: str
    dims: tuple[int, ...]
    initial_dims: tuple[int, ...]
    initial_file: str = ""


@dataclass(frozen=True, slots=True)
class SequenceBatching:
    """`sequence_batching`: an instance executes the requests of a sequence one after the other.

    `oldest` selects the strategy. `max_candidates` (0 for the batch size), `preferred_batch_sizes` and
    `preserve_ordering` are for oldest, `minimum_slot_utilization` is for direct. An `iterative` model executes a
    request repeatedly until it responds.
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
    """The device of an instance. `repository/` resolves AUTO to GPU or CPU at load."""

    AUTO = "KIND_AUTO"
    CPU = "KIND_CPU"
    GPU = "KIND_GPU"
    MODEL = "KIND_MODEL"  # chosen by the model


@dataclass(frozen=True, slots=True)
class ResourceNeed:
    """Units of a resource that an execution needs, of its device or, if `shared`, of all devices together."""

    name: str
    count: int
    shared: bool = False  # `global` in the configuration


@dataclass(frozen=True, slots=True)
class RateLimit:
    """`rate_limiter` of an instance group: resources and priority of an execution; 2 executes half as often as 1."""

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
    host_policy: str = ""


class VersionPolicyKind(Enum):
    """How the served version directories are selected."""

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
    """One step: maps of the model's inputs and outputs (keys) to the ensemble's tensors (values)."""

    model_name: str
    model_version: int  # -1: the latest
    input_map: Mapping[str, str]
    output_map: Mapping[str, str]
    model_namespace: str = ""  # "": the ensemble's namespace first


@dataclass(frozen=True, slots=True)
class WarmupTensor:
    """One input of a warm-up request: the file `warmup/<filename>` if there is a name, else random data or zeros."""

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
    """One model's complete configuration: names, kinds and defaults are filled in.

    `document` is the complete `inference.ModelConfig` message as JSON with proto field names, for the config endpoint
    and the `model_config` of Python models. At most one of `dynamic_batching`, `sequence_batching` and
    `ensemble_steps` is set; without any the model has the default scheduler.
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
    max_inflight_requests: int = 0  # of an ensemble, per step; 0 for no limit
    decoupled: bool = False
    response_cache: bool = False
    default_model_filename: str = ""
    # Compute capability, such as "9.0" → model file.
    cc_model_filenames: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    metric_tags: Mapping[str, str] = field(default_factory=dict)
    # Family of a histogram → its upper bounds, in the unit of the family.
    histogram_buckets: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    warmups: tuple[Warmup, ...] = ()
    batch_inputs: tuple[BatchInput, ...] = ()
    batch_outputs: tuple[BatchOutput, ...] = ()
    document: Mapping[str, Any] = field(default_factory=dict)
    # Where `max_batch_size` comes from if config.pbtxt has none, for errors.
    batch_origin: str = ""
    degraded: tuple[Degradation, ...] = ()  # settings without effect, reported when the configuration was completed

    @property
    def is_ensemble(self) -> bool:
        """Whether the model is a graph of other models."""
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
