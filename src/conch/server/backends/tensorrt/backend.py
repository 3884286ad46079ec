"""`backend: "tensorrt"`: plans, one execution context for each profile and one thread per instance.

A plan runs only with the version of TensorRT and the kind of GPU that it was built with, unless built otherwise.
"""

import asyncio
from collections.abc import Mapping, Sequence
from logging import getLogger
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt
import tensorrt as trt  # type: ignore[import-not-found, import-untyped, unused-ignore]

from conch.base.errors import BackendError, ConfigError, ModelLoadError
from conch.domain.files.signature import Signature, TensorInfo
from conch.domain.model_config import InstanceKind
from conch.domain.tensor import NUMPY_DTYPES
from conch.server.backends.base import Backend, Instance, InstancePlan, ModelSource
from conch.server.backends.model_file import model_path
from conch.server.backends.signature import check_signature, complete_document, needs_completion
from conch.server.backends.stacking import BF16_BITS
from conch.server.backends.tensorrt.device import Device, check_device
from conch.server.backends.tensorrt.profiles import Profile, ShapeRange, check_batch, choose_profile, profile_indices
from conch.server.backends.threaded import Arrays, ThreadedInstance

_log = getLogger(__name__)

_MODEL_FILE = "model.plan"

_DATATYPES = {
    trt.DataType.BOOL: "BOOL",
    trt.DataType.UINT8: "UINT8",
    trt.DataType.INT8: "INT8",
    trt.DataType.INT32: "INT32",
    trt.DataType.INT64: "INT64",
    trt.DataType.HALF: "FP16",
    trt.DataType.BF16: "BF16",
    trt.DataType.FLOAT: "FP32",
}


class _Messages(trt.ILogger):  # type: ignore[misc, unused-ignore]
    """Collects the errors that TensorRT reports only to its logger; logs warnings."""

    def __init__(self) -> None:
        trt.ILogger.__init__(self)
        self.errors: list[str] = []

    def log(self, severity: Any, message: str) -> None:
        """Record an error or log a warning. Called by TensorRT, in any thread."""
        if severity in (trt.ILogger.INTERNAL_ERROR, trt.ILogger.ERROR):
            self.errors.append(message)
        elif severity == trt.ILogger.WARNING:
            _log.warning("TensorRT: %s", message)

    def take(self) -> str:
        """Return the errors since the last call."""
        errors, self.errors = self.errors, []
        return "; ".join(errors) or "no reason given"


class TensorRtEngine:
    """A plan on a device, which its execution contexts share."""

    def __init__(self, path: Path, instance: str) -> None:
        """Load a plan on the current device of this thread. Raises ModelLoadError with TensorRT's errors."""
        self.messages = _Messages()
        self._runtime = trt.Runtime(self.messages)
        self.engine: Any = self._runtime.deserialize_cuda_engine(path.read_bytes())
        if self.engine is None:
            raise ModelLoadError(
                f"unable to load plan '{path}' for model instance '{instance}': {self.messages.take()}; build it with "
                f"TensorRT {trt.__version__} on a GPU of this kind, or as version and hardware compatible"
            )
        names = [self.engine.get_tensor_name(index) for index in range(self.engine.num_io_tensors)]
        self.inputs = [name for name in names if self.engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT]
        self.outputs = [name for name in names if name not in self.inputs]
        shaping = [name for name in names if self.engine.is_shape_inference_io(name)]
        if shaping:
            raise ModelLoadError(
                f"'{shaping[0]}' in plan '{path}' is a shape tensor, which is not supported: make the shape depend on "
                "the shape of an input"
            )
        self.profiles = [self._profile(index) for index in range(self.engine.num_optimization_profiles)]

    def signature(self) -> Signature:
        """Return inputs and outputs."""
        return Signature(
            inputs=tuple(self._info(name) for name in self.inputs),
            outputs=tuple(self._info(name) for name in self.outputs),
        )

    def _info(self, name: str) -> TensorInfo:
        kind = self.engine.get_tensor_dtype(name)
        return TensorInfo(name, _DATATYPES.get(kind, ""), tuple(self.engine.get_tensor_shape(name)), str(kind))

    def _profile(self, index: int) -> Profile:
        shapes = {name: self.engine.get_tensor_profile_shape(name, index) for name in self.inputs}
        return Profile(index, {name: ShapeRange(*(tuple(shape) for shape in three)) for name, three in shapes.items()})


class TensorRtEngines:
    """The plans in use; each is loaded once per device."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._engines: WeakValueDictionary[tuple[Any, ...], TensorRtEngine] = WeakValueDictionary()

    def get(self, path: Path, device: int, instance: str) -> TensorRtEngine:
        """Return the plan on `device`, which must be the current one of this thread. Raises ModelLoadError."""
        state = path.stat()
        key = (str(path), state.st_ino, state.st_mtime_ns, state.st_size, device)
        with self._lock:
            engine = self._engines.get(key)
            if engine is None:
                engine = self._engines[key] = TensorRtEngine(path, instance)
        return engine


class TensorRtBackend(Backend):
    """Plans through TensorRT."""

    name = "tensorrt"
    default_model_filename = _MODEL_FILE

    def __init__(self) -> None:
        self._engines = TensorRtEngines()

    async def complete(self, source: ModelSource) -> Mapping[str, Any]:
        document = source.config.document
        if not needs_completion(document):
            return document
        return await asyncio.to_thread(self._complete, source)

    def instance(self, plan: InstancePlan) -> Instance:
        return TensorRtInstance(plan, self._engines)

    def _complete(self, source: ModelSource) -> Mapping[str, Any]:
        path = model_path(source, _MODEL_FILE, source.config.name)
        check_device(0)
        device = Device(0)
        device.open()
        try:
            engine = self._engines.get(path, 0, source.config.name)
        finally:
            device.close()
        max_batch_size = max((profile.max_batch_size for profile in engine.profiles), default=0)
        return complete_document(source.config.document, engine.signature(), max_batch_size)


backend = TensorRtBackend


class TensorRtInstance(ThreadedInstance):
    """Execution contexts of one plan."""

    def __init__(self, plan: InstancePlan, engines: TensorRtEngines) -> None:
        super().__init__(plan)
        self._engines = engines
        self._device = Device(plan.device_id)
        self._engine: TensorRtEngine | None = None
        self._profiles: list[Profile] = []
        self._contexts: dict[int, Any] = {}  # by profile number
        self._dtypes: dict[str, np.dtype[Any]] = {}

    def load(self) -> None:
        plan, config = self.plan, self.plan.source.config
        check_device(plan.device_id)
        if plan.kind is not InstanceKind.GPU:
            raise ConfigError(
                f"instance '{plan.name}' of model '{config.name}' is {plan.kind.value}, but TensorRT needs a GPU; "
                "write kind: KIND_GPU in instance_group"
            )
        self._device.open()
        try:
            self._open()
        except BaseException:
            self.unload()
            raise

    def _open(self) -> None:
        plan, config = self.plan, self.plan.source.config
        path = model_path(plan.source, _MODEL_FILE, plan.name)
        self._engine = engine = self._engines.get(path, plan.device_id, plan.name)
        signature = engine.signature()
        check_signature(config, signature)
        indices = profile_indices(config.document, plan.name, len(engine.profiles))
        self._profiles = [engine.profiles[index] for index in indices]
        check_batch(config.name, config.max_batch_size, self._profiles)
        for index in indices:
            context = engine.engine.create_execution_context()
            if context is None or not context.set_optimization_profile_async(index, self._device.stream):
                raise ModelLoadError(
                    f"no execution context with profile {index} for model instance '{plan.name}': "
                    f"{engine.messages.take()}"
                )
            self._contexts[index] = context
        self._device.wait()
        self._dtypes = {info.name: NUMPY_DTYPES.get(info.datatype, BF16_BITS) for info in signature.outputs}
        _log.info(
            "instance '%s': TensorRT %s on GPU %d, profiles %s", plan.name, trt.__version__, plan.device_id, indices
        )

    def compute(self, inputs: Arrays, outputs: Sequence[str]) -> Mapping[str, npt.NDArray[Any]]:
        """Run the plan. Raises InvalidRequest for a shape that it was not built for, BackendError for a failure."""
        assert self._engine is not None
        profile = choose_profile(self._profiles, {name: array.shape for name, array in inputs.items()})
        context = self._contexts[profile.index]
        device = self._device
        for name, array in inputs.items():
            if not context.set_input_shape(name, array.shape):
                raise self._failed(f"shape {list(array.shape)} of input '{name}'")
            context.set_tensor_address(name, device.upload(name, array))
        shapes: dict[str, tuple[int, ...]] = {}
        # All outputs, requested or not: the plan writes each.
        for name in self._engine.outputs:
            shapes[name] = shape = tuple(context.get_tensor_shape(name))
            if min(shape, default=0) < 0:
                raise BackendError(f"the shape of output '{name}' depends on the data, which is not supported")
            size = int(np.prod(shape, dtype=np.int64)) * self._dtypes[name].itemsize
            context.set_tensor_address(name, device.buffer(name, size))
        if not context.execute_async_v3(device.stream):
            device.wait()
            raise self._failed("execution")
        results = {name: device.download(name, shapes[name], self._dtypes[name]) for name in outputs}
        device.wait()
        return results

    def unload(self) -> None:
        self._contexts.clear()
        self._engine = None
        self._device.close()

    def _failed(self, what: str) -> BackendError:
        assert self._engine is not None
        return BackendError(f"TensorRT: {what} failed: {self._engine.messages.take()} (instance '{self.plan.name}')")
