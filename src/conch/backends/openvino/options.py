"""What a configuration says about how OpenVINO is to run a model, checked; nothing here needs the library.

Parameters are those of Triton's openvino backend. Whatever else OpenVINO has as a property of its CPU device goes by
OpenVINO's own name, in the model's parameters or, for all models, as `--backend-config=openvino,<name>=<value>`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from conch.backends.base import ModelSource
from conch.backends.native_options import folder_path, library_path, thread_count
from conch.errors import ConfigError

# Names that are handed on as they are; OpenVINO judges the values.
_PROPERTIES = (
    "PERFORMANCE_HINT",
    "PERFORMANCE_HINT_NUM_REQUESTS",
    "EXECUTION_MODE_HINT",
    "INFERENCE_PRECISION_HINT",
    "INFERENCE_NUM_THREADS",
    "COMPILATION_NUM_THREADS",
    "NUM_STREAMS",
    "ENABLE_CPU_PINNING",
    "ENABLE_HYPER_THREADING",
    "SCHEDULING_CORE_TYPE",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE",
    "CACHE_DIR",
    "CACHE_MODE",
)
# What Triton's backend called things before OpenVINO 2022.
_RENAMED = {
    "CPU_THREADS_NUM": "INFERENCE_NUM_THREADS",
    "CPU_THROUGHPUT_STREAMS": "NUM_STREAMS",
    "CPU_BIND_THREAD": "ENABLE_CPU_PINNING",
    "ENFORCE_BF16": "HINT_BF16",
    "SKIP_DYNAMIC_BATCHSIZE": "SKIP_OV_DYNAMIC_BATCHSIZE",
}
_COUNTS = frozenset(
    {"INFERENCE_NUM_THREADS", "COMPILATION_NUM_THREADS", "NUM_STREAMS", "PERFORMANCE_HINT_NUM_REQUESTS"}
)
_STREAMS = {"AUTO": "-1", "NUMA": "-2"}
_SWITCHES = {"YES": True, "TRUE": True, "1": True, "NO": False, "FALSE": False, "0": False}

# The names that onnxruntime's OpenVINO provider has for the same things.
_OF_ACCELERATOR = {
    "precision": "INFERENCE_PRECISION_HINT",
    "num_of_threads": "INFERENCE_NUM_THREADS",
    "num_streams": "NUM_STREAMS",
    "cache_dir": "CACHE_DIR",
    "device_type": "TARGET_DEVICE",
}
_PRECISIONS = {"FP32": "f32", "FP16": "f16", "BF16": "bf16"}


@dataclass(frozen=True, slots=True)
class OpenVinoOptions:
    """How one instance is compiled.

    `static_batch` fixes the batch at `max_batch_size`, and `pad_batch` fills smaller batches up to it; `reshape` gives
    the inputs the shapes of the configuration. `extension` is a library with operations of the user's.
    """

    device: str = "CPU"
    properties: Mapping[str, str] = field(default_factory=dict)
    extension: str = ""
    static_batch: bool = False
    pad_batch: bool = False
    reshape: bool = False


def read_options(parameters: Mapping[str, str], settings: Mapping[str, str]) -> OpenVinoOptions:
    """Return what the model's `parameters`, and where they are silent the settings of the server, ask for.

    Raises ConfigError naming a parameter that has another name, or a value that it cannot have.
    """
    said = {**settings, **parameters}
    for old, new in _RENAMED.items():
        if old in said:
            raise ConfigError(f"parameter '{old}' of the openvino backend is called '{new}'")
    properties = {name: said[name] for name in _PROPERTIES if name in said}
    if "NUM_STREAMS" in properties:
        properties["NUM_STREAMS"] = _STREAMS.get(said["NUM_STREAMS"].upper(), said["NUM_STREAMS"])
    if "PERFORMANCE_HINT" in properties:
        properties["PERFORMANCE_HINT"] = said["PERFORMANCE_HINT"].upper()
    if _switch(said, "HINT_BF16"):
        properties.setdefault("INFERENCE_PRECISION_HINT", "bf16")
    options = OpenVinoOptions(
        device=said.get("TARGET_DEVICE", "CPU"),
        properties=properties,
        extension=said.get("CPU_EXTENSION_PATH", ""),
        static_batch=_switch(said, "SKIP_OV_DYNAMIC_BATCHSIZE"),
        pad_batch=_switch(said, "ENABLE_BATCH_PADDING"),
        reshape=_switch(said, "RESHAPE_IO_LAYERS"),
    )
    if options.pad_batch and not options.static_batch:
        raise ConfigError("parameter 'ENABLE_BATCH_PADDING' needs 'SKIP_OV_DYNAMIC_BATCHSIZE': nothing else is padded")
    return options


def accelerator_options(parameters: Mapping[str, str], settings: Mapping[str, str]) -> OpenVinoOptions:
    """Return the same of the `parameters` of an execution accelerator, in the spelling of onnxruntime or of OpenVINO.

    It computes in the precision of the model if they name none, as onnxruntime does. Raises ConfigError.
    """
    said = {_OF_ACCELERATOR.get(name, name): value for name, value in parameters.items()}
    unknown = sorted(said.keys() - {*_PROPERTIES, "TARGET_DEVICE"})
    if unknown:
        allowed = ", ".join((*_OF_ACCELERATOR, *_PROPERTIES))
        raise ConfigError(f"execution accelerator 'openvino' has no parameter '{unknown[0]}'; it has: {allowed}")
    # `CPU_FP32` was one word for device and precision.
    device, _, joined = said.get("TARGET_DEVICE", "CPU").partition("_")
    precision = said.get("INFERENCE_PRECISION_HINT", joined or "FP32")
    said |= {"TARGET_DEVICE": device, "INFERENCE_PRECISION_HINT": _PRECISIONS.get(precision.upper(), precision)}
    return read_options(said, settings)


def checked_parameters(source: ModelSource) -> dict[str, str]:
    """Return the parameters of a model, with paths made absolute.

    Raises ConfigError for a cache outside of the model's folder, a library that is not allowed, too many threads.
    """
    said = dict(source.config.parameters)
    for name, checked in (("CACHE_DIR", folder_path), ("CPU_EXTENSION_PATH", library_path)):
        if said.get(name):
            try:
                said[name] = str(checked(source, said[name], f"parameter {name}"))
            except ConfigError as error:
                raise ConfigError(
                    f"{error.message}; the operator may name any with --backend-config=openvino,{name}=<path>"
                ) from error
    for name in _COUNTS & said.keys():
        thread_count(said[name], name, source.config.name)
    return said


def _switch(said: Mapping[str, str], name: str) -> bool:
    text = said.get(name, "NO")
    if text.upper() not in _SWITCHES:
        raise ConfigError(f"parameter '{name}' must be YES or NO, got '{text}'")
    return _SWITCHES[text.upper()]
