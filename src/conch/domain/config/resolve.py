"""Resolve a configuration: fill in defaults, check all rules, and return it as a `ModelConfig`.

A configuration is checked and converted twice, because Triton checks it twice and clients see both results:

* `Repository.read` checks the file alone, when the repository is scanned. An invalid model is `UNAVAILABLE` with a
  reason at once, without its backend. Tensors and instance groups may still be missing.
* `resolve` runs when the model is loaded, after the backend has completed the document from the model file. Only now
  are tensors, defaults of the backend and GPUs known, so only now can the rules about them be checked. It repeats the
  first checks, because auto-completion may have changed any field.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from conch.base.errors import ConfigError
from conch.domain.config.document import from_document
from conch.domain.config.from_proto import to_model_config
from conch.domain.config.size_limits import check_limits
from conch.domain.config.unsupported import refuse_unsupported, unsupported_notices
from conch.domain.config.validate import validate_configuration, validate_tensors
from conch.domain.model_config import ENSEMBLE_PLATFORM, ModelConfig
from conch.domain.triton_messages import ModelConfig as ConfigMessage
from conch.domain.triton_messages import ModelInstanceGroup

_SEQUENCE_IDLE_US = 1_000_000


class BackendDefaults(Protocol):
    """What a backend fills in; see `conch.server.backends.base.Backend`."""

    default_model_filename: str
    default_cpu_instance_count: int

    @property
    def can_use_gpus(self) -> bool:
        """Whether KIND_AUTO may mean a GPU."""


@dataclass(frozen=True, slots=True)
class ResolvedConfig:
    """A complete configuration, and what of it has no effect: (reason of the degradation, sentence)."""

    config: ModelConfig
    notices: tuple[tuple[str, str], ...]


def resolve(
    document: Mapping[str, Any], *, backend: BackendDefaults | None, gpus: Sequence[int] = ()
) -> ResolvedConfig:
    """Fill in the defaults of a configuration and check it.

    `document` is `ModelFiles.document`, or the result of `Backend.complete`; `backend` is None for an ensemble; `gpus`
    are the ids of the GPUs of this machine. Raises ConfigError naming the field and what would be right.
    """
    name = document.get("name", "")
    message = from_document(document, f"configuration of model '{name}'")
    check_limits(message, name)
    notices = _fill_defaults(message, backend, gpus)
    check_limits(message, name)  # again, because the defaults include devices and counts of instance groups
    validate_configuration(message)
    validate_tensors(message)
    refuse_unsupported(message)
    ignored = tuple(("setting_ignored", notice) for notice in unsupported_notices(message))
    return ResolvedConfig(to_model_config(message), (*notices, *ignored, *_alone(message)))


def _alone(message: ConfigMessage) -> Iterator[tuple[str, str]]:
    """Yield a notice if dynamic batching, without priorities and queue policies, cannot batch: for batches of 1."""
    batching = message.dynamic_batching
    if (
        message.WhichOneof("scheduling_choice") == "dynamic_batching"
        and message.max_batch_size == 1
        and not (batching.priority_levels or batching.HasField("default_queue_policy") or batching.preserve_ordering)
    ):
        yield "batch_of_one", f"dynamic_batching of model '{message.name}' has no effect: max_batch_size is 1"


def _fill_defaults(
    message: ConfigMessage, backend: BackendDefaults | None, gpus: Sequence[int]
) -> list[tuple[str, str]]:
    """Fill version policy, preferred batch sizes, idle times, pinned memory, file name and instance groups in place.

    KIND_AUTO becomes KIND_GPU or KIND_CPU. KIND_GPU falls back to the CPU on a machine without GPUs, where Triton would
    refuse the model. Returns notices for the log. Raises ConfigError for a GPU that does not exist.
    """
    if not message.HasField("version_policy"):
        message.version_policy.latest.num_versions = 1
    dynamic = message.WhichOneof("scheduling_choice") == "dynamic_batching"
    if dynamic and not message.dynamic_batching.preferred_batch_size and message.max_batch_size > 0:
        message.dynamic_batching.preferred_batch_size.append(message.max_batch_size)
    _fill_sequence_batching(message)
    if message.platform == ENSEMBLE_PLATFORM:
        return []
    for buffer in ("input_pinned_memory", "output_pinned_memory"):
        if not message.optimization.HasField(buffer):
            getattr(message.optimization, buffer).enable = True
    if backend is not None and not message.default_model_filename:
        message.default_model_filename = backend.default_model_filename
    if backend is None:
        return _fill_instance_groups(message, 1, gpus, auto_gpus=gpus)
    auto_gpus = gpus if gpus and backend.can_use_gpus else ()
    return _fill_instance_groups(message, backend.default_cpu_instance_count, gpus, auto_gpus=auto_gpus)


def _fill_sequence_batching(message: ConfigMessage) -> None:
    if message.WhichOneof("scheduling_choice") != "sequence_batching":
        return
    batching = message.sequence_batching
    batching.max_sequence_idle_microseconds = batching.max_sequence_idle_microseconds or _SEQUENCE_IDLE_US
    if batching.HasField("oldest") and not batching.oldest.preferred_batch_size and message.max_batch_size > 0:
        batching.oldest.preferred_batch_size.append(message.max_batch_size)


def _fill_instance_groups(
    message: ConfigMessage, cpu_count: int, gpus: Sequence[int], *, auto_gpus: Sequence[int]
) -> list[tuple[str, str]]:
    """Fill in names, kinds, counts and GPUs of instance groups. `auto_gpus` are the GPUs that KIND_AUTO may use."""
    if not message.instance_group:
        message.instance_group.add(name=message.name)
    notices: list[tuple[str, str]] = []
    for index, group in enumerate(message.instance_group):
        group.name = group.name or f"{message.name}_{index}"
        notices += [("kind_gpu_on_cpu", notice) for notice in _resolve_kind(group, message.name, gpus, auto_gpus)]
        if group.count < 1:
            group.count = cpu_count if group.kind == ModelInstanceGroup.KIND_CPU else 1
        if group.kind == ModelInstanceGroup.KIND_GPU and not group.gpus:
            group.gpus.extend(gpus)
    return notices


def _resolve_kind(group: Any, model: str, gpus: Sequence[int], auto_gpus: Sequence[int]) -> list[str]:
    missing = sorted(set(group.gpus) - set(gpus))
    subject = f"instance group '{group.name}' of model '{model}'"
    if group.kind == ModelInstanceGroup.KIND_AUTO:
        group.kind = ModelInstanceGroup.KIND_GPU if auto_gpus and not missing else ModelInstanceGroup.KIND_CPU
        if group.kind == ModelInstanceGroup.KIND_CPU and group.gpus:
            cause = f"GPU {_list(missing)} is not available" if missing else "its backend cannot use GPUs here"
            del group.gpus[:]
            return [f"{subject} runs on the CPU: {cause}"]
    elif group.kind == ModelInstanceGroup.KIND_GPU:
        if not gpus:
            group.kind = ModelInstanceGroup.KIND_CPU
            del group.gpus[:]
            return [f"{subject} has KIND_GPU, but no GPUs are available: it runs on the CPU"]
        if missing:
            raise ConfigError(
                f"instance group {group.name} of model {model} specifies invalid or unsupported gpu id "
                f"{missing[0]}. GPUs of this machine are: {_list(gpus)}"
            )
    return []


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
