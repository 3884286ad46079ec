"""Options of the openvino backend, from parameters and settings. Does not import OpenVINO.

Parameters are those of Triton's openvino backend. Other properties of OpenVINO's CPU device have OpenVINO's names, in
the model's parameters or, for all models, as `--backend-config=openvino,<name>=<value>`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from conch.base.errors import ConfigError
from conch.server.backends.base import ModelSource
from conch.server.backends.native_options import folder_path, library_path, thread_count
from conch.server.backends.parameters import BOOLEANS, chosen

# Properties that are passed on unchanged; OpenVINO validates the values.
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
# Names that Triton's backend used before OpenVINO 2022 → current names.
_RENAMED = {
    "CPU_THREADS_NUM": "INFERENCE_NUM_THREADS",
    "CPU_THROUGHPUT_STREAMS": "NUM_STREAMS",
    "CPU_BIND_THREAD": "ENABLE_CPU_PINNING",
    "ENFORCE_BF16": "HINT_BF16",
    "SKIP_DYNAMIC_BATCHSIZE": "SKIP_OV_DYNAMIC_BATCHSIZE",
}
# Names that `read_options` reads or refuses.
SETTINGS = (
    *_PROPERTIES,
    *_RENAMED,
    "HINT_BF16",
    "TARGET_DEVICE",
    "CPU_EXTENSION_PATH",
    "SKIP_OV_DYNAMIC_BATCHSIZE",
    "ENABLE_BATCH_PADDING",
    "RESHAPE_IO_LAYERS",
)
_COUNTS = frozenset(
    {"INFERENCE_NUM_THREADS", "COMPILATION_NUM_THREADS", "NUM_STREAMS", "PERFORMANCE_HINT_NUM_REQUESTS"}
)
_STREAMS = {"AUTO": "-1", "NUMA": "-2"}
_SWITCHES = {"yes": True, "no": False, **BOOLEANS}

# Names in onnxruntime's OpenVINO provider → names here.
_ACCELERATOR_NAMES = {
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

    `static_batch` fixes the batch size at `max_batch_size`, and `pad_batch` pads smaller batches; `reshape` sets the
    inputs' shapes to those of the configuration. `extension` is the path of a library with custom operations.
    """

    device: str = "CPU"
    properties: Mapping[str, str] = field(default_factory=dict)
    extension: str = ""
    static_batch: bool = False
    pad_batch: bool = False
    reshape: bool = False


def read_options(parameters: Mapping[str, str], settings: Mapping[str, str]) -> OpenVinoOptions:
    """Return the options in the model's `parameters`, with defaults from the backend's `settings`.

    Raises ConfigError for a parameter that was renamed, or an invalid value.
    """
    values = {**settings, **parameters}
    for old, new in _RENAMED.items():
        if old in values:
            raise ConfigError(f"parameter '{old}' of the openvino backend was renamed; use '{new}'")
    properties = {name: values[name] for name in _PROPERTIES if name in values}
    if "NUM_STREAMS" in properties:
        properties["NUM_STREAMS"] = _STREAMS.get(values["NUM_STREAMS"].upper(), values["NUM_STREAMS"])
    if "PERFORMANCE_HINT" in properties:
        properties["PERFORMANCE_HINT"] = values["PERFORMANCE_HINT"].upper()
    if chosen(values, "HINT_BF16", _SWITCHES, False):
        properties.setdefault("INFERENCE_PRECISION_HINT", "bf16")
    options = OpenVinoOptions(
        device=values.get("TARGET_DEVICE", "CPU"),
        properties=properties,
        extension=values.get("CPU_EXTENSION_PATH", ""),
        static_batch=chosen(values, "SKIP_OV_DYNAMIC_BATCHSIZE", _SWITCHES, False),
        pad_batch=chosen(values, "ENABLE_BATCH_PADDING", _SWITCHES, False),
        reshape=chosen(values, "RESHAPE_IO_LAYERS", _SWITCHES, False),
    )
    if options.pad_batch and not options.static_batch:
        raise ConfigError("parameter 'ENABLE_BATCH_PADDING' needs 'SKIP_OV_DYNAMIC_BATCHSIZE' (a fixed batch size)")
    return options


def accelerator_options(parameters: Mapping[str, str], settings: Mapping[str, str]) -> OpenVinoOptions:
    """Return the options of an execution accelerator, whose parameters have onnxruntime's or OpenVINO's names.

    The default precision is the model's, as in onnxruntime. Raises ConfigError.
    """
    values = {_ACCELERATOR_NAMES.get(name, name): value for name, value in parameters.items()}
    unknown = sorted(values.keys() - {*_PROPERTIES, "TARGET_DEVICE"})
    if unknown:
        allowed = ", ".join((*_ACCELERATOR_NAMES, *_PROPERTIES))
        raise ConfigError(f"execution accelerator 'openvino' has no parameter '{unknown[0]}'; it has: {allowed}")
    # Older versions name device and precision together: `CPU_FP32`.
    device, _, joined = values.get("TARGET_DEVICE", "CPU").partition("_")
    precision = values.get("INFERENCE_PRECISION_HINT", joined or "FP32")
    values |= {"TARGET_DEVICE": device, "INFERENCE_PRECISION_HINT": _PRECISIONS.get(precision.upper(), precision)}
    return read_options(values, settings)


def checked_parameters(source: ModelSource) -> dict[str, str]:
    """Return the parameters of a model with absolute paths.

    Raises ConfigError for a cache outside of the model's folder, a library that is not allowed, and too many threads.
    """
    values = dict(source.config.parameters)
    for name, checked in (("CACHE_DIR", folder_path), ("CPU_EXTENSION_PATH", library_path)):
        if values.get(name):
            try:
                values[name] = str(checked(source, values[name], f"parameter {name}"))
            except ConfigError as error:
                raise ConfigError(
                    f"{error.message}; the operator may allow any path by --backend-config=openvino,{name}=<path>"
                ) from error
    for name in _COUNTS & values.keys():
        thread_count(values[name], name, source.config.name)
    return values
