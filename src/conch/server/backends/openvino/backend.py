"""`backend: "openvino"`: OpenVINO IR, ONNX and other formats of OpenVINO, one compiled model and thread per instance.

Parameters are those of Triton's openvino backend; see `openvino.options`.
"""

from collections.abc import Iterable, Mapping, Sequence
from logging import getLogger
from queue import SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov

from conch.base.errors import BackendError, ConfigError, ModelLoadError
from conch.domain.files.signature import Signature, TensorInfo
from conch.domain.model_config import InstanceKind, ModelConfig
from conch.machine.cores import usable_cores
from conch.server.backends.base import Backend, Instance, InstancePlan, ModelSource
from conch.server.backends.model_file import model_path
from conch.server.backends.openvino.options import OpenVinoOptions, checked_parameters, read_options
from conch.server.backends.signature import check_signature, completed
from conch.server.backends.stacking import BF16_BITS
from conch.server.backends.threaded import Arrays, ThreadedInstance

_log = getLogger(__name__)

_MODEL_FILE = "model.xml"
_SAVED_MODEL = "saved_model.pb"  # of a folder of TensorFlow, which is read as a whole
_VERSION = ov.__version__.partition("-")[0]

# Strings are not supported: OpenVINO's Python API frees their memory incorrectly, which crashes the process.
_DATATYPES = {
    ov.Type.boolean: "BOOL",
    ov.Type.u8: "UINT8",
    ov.Type.u16: "UINT16",
    ov.Type.u32: "UINT32",
    ov.Type.u64: "UINT64",
    ov.Type.i8: "INT8",
    ov.Type.i16: "INT16",
    ov.Type.i32: "INT32",
    ov.Type.i64: "INT64",
    ov.Type.f16: "FP16",
    ov.Type.bf16: "BF16",
    ov.Type.f32: "FP32",
    ov.Type.f64: "FP64",
}


class OpenVinoBackend(Backend):
    """Models through OpenVINO."""

    name = "openvino"
    can_use_gpus = False
    default_model_filename = _MODEL_FILE

    async def complete(self, source: ModelSource) -> Mapping[str, Any]:
        return await completed(source, _read_signature)

    def instance(self, plan: InstancePlan) -> Instance:
        return OpenVinoInstance(plan)


backend = OpenVinoBackend


class OpenVinoInstance(ThreadedInstance):
    """One compiled model, and one inference request for each of its streams."""

    def __init__(self, plan: InstancePlan, options: OpenVinoOptions | None = None) -> None:
        """`options` are by default read from the model's parameters at load."""
        super().__init__(plan)
        self.compiled: ov.CompiledModel | None = None
        self._options = options
        self._requests: SimpleQueue[ov.InferRequest] = SimpleQueue()
        self._inputs: dict[str, tuple[int, Any, bool]] = {}  # name → index, element type, whether it is a scalar
        self._outputs: dict[str, int] = {}
        self._fixed_batch = 0  # 0: any size
        self._pad = False

    def load(self) -> None:
        source = self.plan.source
        if self.plan.kind is InstanceKind.GPU:
            source.report(
                "kind_gpu_on_cpu",
                f"instance '{self.plan.name}' is KIND_GPU, which has no effect: parameter TARGET_DEVICE selects "
                "OpenVINO's device",
            )
        options = self._options or read_options(checked_parameters(source), source.settings)
        core = _core(options)
        model = _read(core, source, self.plan.name)
        _reshape(model, source.config, options)
        signature = _signature(model, source.config)
        check_signature(source.config, signature)
        if options.static_batch and source.config.max_batch_size > 0:
            self._fixed_batch, self._pad = source.config.max_batch_size, options.pad_batch
            _set_batch(model, self._fixed_batch)
        self._compile(core, model, options)
        for index, (info, port) in enumerate(zip(signature.inputs, model.inputs, strict=True)):
            self._inputs[info.name] = (index, port.element_type, not info.dims)
        self._outputs = {info.name: index for index, info in enumerate(signature.outputs)}

    def compute(self, inputs: Arrays, outputs: Sequence[str]) -> Mapping[str, npt.NDArray[Any]]:
        """Run one request of the model. Raises BackendError with OpenVINO's message."""
        rows = 0
        if self._fixed_batch:
            rows = len(next(iter(inputs.values())))
            inputs = {name: self._padded(array) for name, array in inputs.items()}
        request = self._requests.get()
        try:
            for name, array in inputs.items():
                index, kind, scalar = self._inputs[name]
                shape = [] if scalar else array.shape
                # Shares the memory of the array: no copy.
                request.set_input_tensor(index, ov.Tensor(array.reshape(-1), ov.Shape(shape), kind))
            request.infer()
            results = {name: _copied(request.get_output_tensor(self._outputs[name])) for name in outputs}
        except Exception as error:
            raise BackendError(f"openvino error: {_explain(error)} (instance '{self.plan.name}')") from error
        finally:
            self._requests.put(request)
        return {name: array[:rows] for name, array in results.items()} if self._pad else results

    def unload(self) -> None:
        while not self._requests.empty():
            self._requests.get()
        self.compiled = None

    def _compile(self, core: ov.Core, model: ov.Model, options: OpenVinoOptions) -> None:
        properties = dict(options.properties)
        if options.device == "CPU":
            properties.setdefault("INFERENCE_NUM_THREADS", str(max(1, usable_cores() // self.plan.siblings)))
            # With pinning, every compiled model would use the same first cores.
            properties.setdefault("ENABLE_CPU_PINNING", "NO")
            if "NUM_STREAMS" not in properties:
                properties.setdefault("PERFORMANCE_HINT", "LATENCY")
        try:
            self.compiled = core.compile_model(model, options.device, properties)
            self.concurrent_runs = max(1, int(self.compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")))
            for _ in range(self.concurrent_runs):
                self._requests.put(self.compiled.create_infer_request())
        except Exception as error:
            raise ModelLoadError(f"openvino error: {_explain(error)} (model instance '{self.plan.name}')") from error
        names = ("INFERENCE_NUM_THREADS", "NUM_STREAMS", "INFERENCE_PRECISION_HINT")
        _log.info(
            "instance '%s': openvino %s on %s, %s threads in %s streams, %s precision%s (%d cores, %d instances)",
            self.plan.name,
            _VERSION,
            options.device,
            *(self._property(name) for name in names),
            ", from the model cache" if self._property("LOADED_FROM_CACHE") == "True" else "",
            usable_cores(),
            self.plan.siblings,
        )

    def _property(self, name: str) -> str:
        """Return a property of the compiled model, "?" if its device does not have it."""
        assert self.compiled is not None
        try:
            value = self.compiled.get_property(name)
        except RuntimeError:
            return "?"
        return str(value.to_string()) if isinstance(value, ov.Type) else str(value)

    def _padded(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return a batch of the fixed size. Raises BackendError for a smaller batch without padding."""
        missing = self._fixed_batch - len(array)
        if not missing:
            return array
        if not self._pad:
            raise BackendError(
                f"the batch has {len(array)} items, but with SKIP_OV_DYNAMIC_BATCHSIZE the model takes exactly "
                f"{self._fixed_batch}; ENABLE_BATCH_PADDING: YES pads it (instance '{self.plan.name}')"
            )
        return np.concatenate([array, np.zeros((missing, *array.shape[1:]), array.dtype)])


def _copied(tensor: ov.Tensor) -> npt.NDArray[Any]:
    """Return a copy of an output; the next run reuses its memory."""
    array = np.array(tensor.data)
    return array.view(BF16_BITS) if tensor.element_type == ov.Type.bf16 else array


def _core(options: OpenVinoOptions) -> ov.Core:
    core = ov.Core()
    if options.extension:
        try:
            core.add_extension(options.extension)
        except Exception as error:
            raise ModelLoadError(
                f"CPU_EXTENSION_PATH: '{options.extension}' cannot be loaded: {_explain(error)}"
            ) from error
    return core


def _read(core: ov.Core, source: ModelSource, instance: str) -> ov.Model:
    folder = source.version_directory / source.config.default_model_filename
    path = folder if (folder / _SAVED_MODEL).is_file() else model_path(source, _MODEL_FILE, instance)
    try:
        return core.read_model(path)
    except Exception as error:
        raise ModelLoadError(f"openvino error: {_explain(error)} ('{path}' for model instance '{instance}')") from error


def _read_signature(source: ModelSource) -> Signature:
    options = read_options(checked_parameters(source), source.settings)
    model = _read(_core(options), source, source.config.name)
    _reshape(model, source.config, options)
    return _signature(model, source.config)


def _reshape(model: ov.Model, config: ModelConfig, options: OpenVinoOptions) -> None:
    """Set the inputs' shapes to those of the configuration if `options.reshape`, else make a needed batch dynamic."""
    batch = [-1] if config.max_batch_size > 0 else []
    shapes: dict[Any, list[int]] = {}
    for port in model.inputs:
        spec = next((candidate for candidate in config.inputs if candidate.name in port.names), None)
        dims = _dims(port)
        if options.reshape and spec is not None:
            shapes[port] = [*batch, *(spec.dims if spec.reshape is None else spec.reshape)]
        elif batch and dims[:1] not in ((), (-1,)) and config.max_batch_size > 1:
            shapes[port] = [-1, *dims[1:]]
    if shapes:
        try:
            model.reshape({port: ov.PartialShape(shape) for port, shape in shapes.items()})
        except Exception as error:
            raise ConfigError(
                f"model '{config.name}' does not support the shapes that its configuration requires "
                f"({', '.join(f'{port.any_name} {shape}' for port, shape in shapes.items())}): {_explain(error)}"
            ) from error


def _set_batch(model: ov.Model, size: int) -> None:
    shapes = {port: ov.PartialShape([size, *_dims(port)[1:]]) for port in model.inputs}
    model.reshape(shapes)


def _signature(model: ov.Model, config: ModelConfig) -> Signature:
    declared = {spec.name for spec in (*config.inputs, *config.outputs)}
    return Signature(inputs=_infos(model.inputs, declared), outputs=_infos(model.outputs, declared))


def _infos(ports: Iterable[Any], declared: set[str]) -> tuple[TensorInfo, ...]:
    return tuple(
        TensorInfo(
            _name(port, declared),
            _DATATYPES.get(port.element_type, ""),
            _dims(port),
            f"of OpenVINO's type '{port.element_type.to_string()}'",
        )
        for port in ports
    )


def _name(port: Any, declared: set[str]) -> str:
    """Return the name of an input or output: of several the declared one; without a name that of its node."""
    names = sorted(port.names)
    return next((name for name in names if name in declared), names[0] if names else str(port.node.friendly_name))


def _dims(port: Any) -> tuple[int, ...]:
    shape = port.partial_shape
    # A dynamic rank is represented like a scalar; the configuration has to declare the shape.
    return () if shape.rank.is_dynamic else tuple(dim.get_length() if dim.is_static else -1 for dim in shape)


def _explain(error: Exception) -> str:
    """Return OpenVINO's message without its source locations."""
    lines = [line.strip() for line in str(error).splitlines()]
    message = [line for line in lines if line and not line.startswith(("Exception from", "Check '"))]
    return " ".join(message) or f"{type(error).__name__}: {error}"
