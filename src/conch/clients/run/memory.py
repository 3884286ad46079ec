"""Estimate a model's memory before it is loaded, and refuse one that does not fit with the change that would."""

from collections.abc import Callable, Sequence
from pathlib import Path

from conch.base.errors import ConfigError
from conch.domain.model_config import ModelConfig
from conch.machine.memory import free_memory, size_text
from conch.server.backends.engines.memory import GIB, folder_size
from conch.server.repository.store import ModelFiles

_MIB = 1 << 20
_SERVER_BYTES = 100 * _MIB
# Backend → the libraries of one process, measured with small models; Python models import what they need.
_LIBRARY_BYTES = {
    "onnxruntime": 60 * _MIB,
    "openvino": 120 * _MIB,
    "pytorch": 300 * _MIB,
    "fil": 40 * _MIB,
    "python": 60 * _MIB,
    "openvino_genai": 200 * _MIB,
}
# Backends with another default than one instance; each instance has a copy of the weights.
_DEFAULT_INSTANCES = {"onnxruntime": 2}
_SHARED_WEIGHTS = ("fil",)  # by all instances
_ENGINES = ("openvino_genai", "vllm", "tensorrtllm")
_MIN_CACHE_BYTES = GIB  # as conch_child/engine/openvino_genai/options.py requires
# Quantizations of GGUF → bits of one weight, the best first.
_QUANTIZATIONS = {"F16": 16.0, "Q8_0": 8.5, "Q6_K": 6.6, "Q5_K_M": 5.7, "Q4_K_M": 4.9, "Q3_K_M": 3.9, "Q2_K": 3.4}
_BITS = {"F32": 32.0, "BF16": 16.0, "Q6_K": 6.6, "Q5_K": 5.7, "Q4_K": 4.9, "Q4_0": 4.6, "Q3_K": 3.9} | _QUANTIZATIONS


def check_memory(
    models: Sequence[ModelFiles], free: Callable[[], int] = free_memory, *, takes_instances: bool = True
) -> int:
    """Return the estimated bytes of a server with these models.

    `takes_instances`: the option --instances says how many there are; otherwise the configuration does.
    Raises ConfigError if they do not fit in the free memory, with the smallest change of the largest model that fits.
    """
    needs = {files.name: model_memory(files) for files in models}
    need = _SERVER_BYTES + sum(needs.values())
    try:
        available = free()
    except OSError:  # unknown, as without /proc
        return need
    if need <= available:
        return need
    largest = max(models, key=lambda files: needs[files.name])
    rest = available - (need - needs[largest.name])
    raise ConfigError(
        f"too little memory: '{largest.name}' needs about {size_text(needs[largest.name])}"
        + (f", all {len(models)} models {size_text(need)}," if len(models) > 1 else "")
        + f" and {size_text(available)} are free; {_remedy(largest, rest, len(models), takes_instances)}"
    )


def model_memory(files: ModelFiles) -> int:
    """Return the estimated bytes of a model: weights of each instance, libraries, and the smallest KV cache."""
    config = files.config
    weights = _weights(files)
    if config.backend in _ENGINES:
        return weights + _MIN_CACHE_BYTES + _LIBRARY_BYTES.get(config.backend, 0)
    library = _LIBRARY_BYTES.get(config.backend, 0)
    if config.backend == "python":
        return instances(config) * (library + weights)
    return library + _copies(config) * weights


def instances(config: ModelConfig) -> int:
    """Return the number of instances that a configuration has, or gets."""
    default = _DEFAULT_INSTANCES.get(config.backend, 1)
    return sum(group.count or default for group in config.instance_groups) or default


def _copies(config: ModelConfig) -> int:
    return 1 if config.backend in _SHARED_WEIGHTS else instances(config)


def _weights(files: ModelFiles) -> int:
    """Return the bytes of the version that is served by default."""
    if files.config.ensemble_steps or not files.versions_on_disk:
        return 0
    return folder_size(files.directory / str(files.versions_on_disk[-1]))


def _remedy(files: ModelFiles, rest: int, models: int, takes_instances: bool) -> str:
    """Return the smallest change with which a model fits into `rest` bytes."""
    config, weights = files.config, _weights(files)
    library = _LIBRARY_BYTES.get(config.backend, 0)
    if config.backend in _ENGINES:
        return _smaller_quantization(files, weights, rest - _MIN_CACHE_BYTES - library)
    count = _copies(config)
    instance_bytes = weights + (library if config.backend == "python" else 0)
    fitting = (rest - (0 if config.backend == "python" else library)) // max(instance_bytes, 1)
    chosen = "--instances {}" if takes_instances else "count: {} in the instance_group of config.pbtxt"
    if 1 <= fitting < count:
        plural = "s" if fitting > 1 else ""
        return f"it fits with {fitting} instance{plural} instead of {count}: {chosen.format(fitting)}"
    if models > 1:
        return "serve fewer models: conch run the folder of one"
    alone = instance_bytes + (0 if config.backend == "python" else library)
    more = size_text(-(-(alone - rest) // _MIB) * _MIB)  # rounded up
    fewer = f" and use {chosen.format(1)}" if count > 1 else ""
    return f"free {more} more{fewer}, or export the model with smaller weights (FP16 or INT8)"


def _smaller_quantization(files: ModelFiles, weights: int, rest: int) -> str:
    """Return the best quantization whose weights fit into `rest` bytes."""
    bits = _bits(files.directory)
    for name, smaller in _QUANTIZATIONS.items():
        if smaller < bits and weights * smaller / bits <= rest:
            size = size_text(int(weights * smaller / bits))
            return (
                f"its weights fit in the quantization {name}, which takes about {size} instead of {size_text(weights)}"
            )
    largest = max(rest, 0)
    return f"a model with weights of at most {size_text(largest)} fits, beside the KV cache of 1 GiB"


def _bits(directory: Path) -> float:
    """Return the bits of one weight: of a GGUF file its most common type's, else 16."""
    from conch.domain.files.gguf_file import NotGguf, read_gguf

    for path in directory.glob("*/*.gguf"):
        try:
            types = read_gguf(path).types
        except (NotGguf, OSError):
            continue
        if types:
            return _BITS.get(types.most_common(1)[0][0], 16.0)
    return 16.0
