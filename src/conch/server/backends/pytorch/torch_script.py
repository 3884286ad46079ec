"""TorchScript models: one module and one thread per instance. PyTorch releases the GIL while it computes."""

import os
from collections.abc import Mapping, Sequence
from logging import getLogger
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from conch.base.errors import BackendError, Code, ConfigError, InvalidRequest, ModelLoadError
from conch.domain.model_config import InstanceKind, ModelConfig, TensorSpec
from conch.domain.tensor import BYTES
from conch.machine.cores import usable_cores
from conch.server.backends.base import InstancePlan, report_threads
from conch.server.backends.pytorch.archive import open_archive, refuse_file_operators
from conch.server.backends.pytorch.files import check_arguments
from conch.server.backends.pytorch.naming import output_places
from conch.server.backends.pytorch.settings import TorchSettings, parse_settings
from conch.server.backends.threaded import Arrays, ThreadedInstance
from conch.server.observability.degradations import Report

# Read when torch is imported. Threads that spin while they wait for each other take the cores from those that work:
# beside other load, a small network took 17 to 75 ms of processor time instead of 4 to 6, and several times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch

_log = getLogger(__name__)

_TORCH_DTYPES = {
    "BOOL": torch.bool,
    "UINT8": torch.uint8,
    "UINT16": torch.uint16,
    "UINT32": torch.uint32,
    "UINT64": torch.uint64,
    "INT8": torch.int8,
    "INT16": torch.int16,
    "INT32": torch.int32,
    "INT64": torch.int64,
    "FP16": torch.float16,
    "BF16": torch.bfloat16,
    "FP32": torch.float32,
    "FP64": torch.float64,
}
_DATATYPES = {dtype: name for name, dtype in _TORCH_DTYPES.items()}

_ARGUMENT_KINDS = ("TensorType", "ListType", "OptionalType")


class SharedByProcess:
    """Process-wide state of all TorchScript models: settings of PyTorch, and modules whose weights are shared."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._chosen: dict[str, tuple[Any, str]] = {}
        self._modules: WeakValueDictionary[tuple[Any, ...], torch.jit.ScriptModule] = WeakValueDictionary()

    def choose(self, settings: TorchSettings, model: str, report: Report) -> None:
        """Apply process-wide settings. A setting that another model has made before stays, with a warning."""
        choices = {
            "INTER_OP_THREAD_COUNT": (torch.set_num_interop_threads, settings.inter_op_threads or None),
            "ENABLE_JIT_EXECUTOR": (torch._C._jit_set_profiling_executor, settings.jit_executor),
            "ENABLE_JIT_PROFILING": (torch._C._jit_set_profiling_mode, settings.jit_profiling),
            "ENABLE_TENSOR_FUSER": (torch._C._jit_set_texpr_fuser_enabled, settings.tensor_fuser),
            "DISABLE_CUDNN": (_disable_cudnn, None if settings.cudnn is None else not settings.cudnn),
        }
        with self._lock:
            for name, (setter, value) in choices.items():
                if value is None:
                    continue
                before, owner = self._chosen.setdefault(name, (value, model))
                if before != value:
                    report(
                        "parameter_ignored",
                        f"parameter '{name}' of model '{model}' has no effect: it applies to the whole process, and "
                        f"model '{owner}' has set it to {before}",
                    )
                elif owner == model:
                    _set(name, setter, value, model, report)

    def module(self, path: Path, device: torch.device | None, *, share: bool) -> torch.jit.ScriptModule:
        """Load a module; with `share`, return the one that another instance has loaded. Raises RuntimeError."""
        if not share:
            return _load(path, device)
        state = path.stat()
        key = (str(path), state.st_ino, state.st_mtime_ns, state.st_size, str(device))
        with self._lock:
            module = self._modules.get(key)
            if module is None:
                module = self._modules[key] = _load(path, device)
        return module


class TorchScriptInstance(ThreadedInstance):
    """One TorchScript module."""

    def __init__(self, plan: InstancePlan, path: Path, shared: SharedByProcess) -> None:
        super().__init__(plan)
        self._path = path
        self._shared = shared
        self._settings = TorchSettings()
        self._device: torch.device | None = None  # None: the model places itself
        self._module: torch.jit.ScriptModule | None = None
        self._module_storages: frozenset[int] = frozenset()
        config = plan.source.config
        self._outputs = {spec.name: spec for spec in config.outputs}
        self._datatypes = {spec.name: spec.datatype for spec in config.inputs}
        self._datatypes |= {
            name: batch_input.datatype for batch_input in config.batch_inputs for name in batch_input.targets
        }
        self._arguments: dict[str, str] = {}  # by input
        self._dictionary = False
        self._places: dict[str, int] = {}

    def load(self) -> None:
        config = self.plan.source.config
        self._settings = settings = parse_settings(self.plan.source)
        refuse_file_operators(open_archive(self._path))
        self._shared.choose(settings, config.name, self.plan.source.report)
        threads = settings.intra_op_threads or max(1, usable_cores() // self.plan.siblings)
        report_threads(self.plan, threads)
        # For this thread: each thread that computes has a separate pool.
        torch.set_num_threads(threads)
        torch._C._set_graph_executor_optimize(settings.optimized_execution)
        self._device = device_of(self.plan)
        with torch.inference_mode(settings.inference_mode):
            try:
                self._module = self._shared.module(self._path, self._device, share=settings.weight_sharing)
            except RuntimeError as error:
                reason = str(error).strip().partition("\n")[0]
                raise ModelLoadError(f"failed to load model '{config.name}': {reason} ('{self._path}')") from error
        self._module_storages = frozenset(
            tensor.untyped_storage().data_ptr()
            for tensors in (self._module.parameters(), self._module.buffers())
            for tensor in tensors
        )
        self._bind(config)
        _log.info(
            "instance '%s': TorchScript on %s, %d threads", self.plan.name, self._device or "its own device", threads
        )

    def compute(self, inputs: Arrays, outputs: Sequence[str]) -> Mapping[str, npt.NDArray[Any]]:
        """Run the module. Raises BackendError with the last line of PyTorch's trace."""
        assert self._module is not None
        arguments = {name: self._argument(name, array) for name, array in inputs.items()}
        with torch.inference_mode(self._settings.inference_mode), torch.no_grad():
            try:
                if self._dictionary:
                    result = self._module(arguments)
                else:
                    result = self._module(**{self._arguments[name]: value for name, value in arguments.items()})
            except Exception as error:
                raise BackendError(
                    f"PyTorch execute failure: {_explain(error)} (instance '{self.plan.name}')"
                ) from error
            results = _results(result)
            arrays = {name: self._output(self._outputs[name], results) for name in outputs}
        if self._settings.cache_cleaning and torch.cuda.is_available():
            torch.cuda.empty_cache()
        return arrays

    def unload(self) -> None:
        self._module = None

    def _bind(self, config: ModelConfig) -> None:
        assert self._module is not None
        arguments = forward_arguments(self._module)
        kinds = {argument.name: argument.type.kind() for argument in arguments}
        self._dictionary = list(kinds.values()) == ["DictType"]
        if not self._dictionary:
            for argument in arguments:
                if kinds[argument.name] not in _ARGUMENT_KINDS:
                    raise ConfigError(
                        f"model '{config.name}': argument '{argument.name}' of forward is {argument.type}; only a "
                        "single input of type Dict(str, Tensor) or inputs of type Tensor and List[str] are supported"
                    )
            required = [argument.name for argument in arguments if not argument.has_default_value()]
            self._arguments = check_arguments(config, list(kinds), required)
        self._places = output_places(config.name, list(self._outputs))
        for spec in (*config.inputs, *config.outputs):
            dims = [-1] * (config.max_batch_size > 0) + list(spec.dims if spec.reshape is None else spec.reshape)
            if spec.datatype == BYTES and len(dims) > 1:
                raise ConfigError(
                    f"model '{config.name}': strings are a List[str] in TorchScript, which has one dimension; "
                    f"'{spec.name}' has {dims}, including the batch dimension; reshape {{ }} drops dims: [ 1 ]"
                )

    def _argument(self, name: str, array: npt.NDArray[Any]) -> Any:
        """Return an input as an argument of the module: a copy, which it may write to."""
        datatype = self._datatypes[name]
        if datatype == BYTES:
            return _texts(name, array)
        tensor = torch.from_numpy(array.copy())
        if datatype == "BF16":
            tensor = tensor.view(torch.bfloat16)
        return tensor if self._device is None else tensor.to(self._device)

    def _output(self, spec: TensorSpec, results: Sequence[Any] | Mapping[str, Any]) -> npt.NDArray[Any]:
        if isinstance(results, Mapping):
            if spec.name not in results:
                raise BackendError(
                    f"the model returns no '{spec.name}'; its dictionary has: {', '.join(map(str, results))}"
                )
            result = results[spec.name]
        elif (place := self._places[spec.name]) < len(results):
            result = results[place]
        else:
            raise BackendError(
                f"The output {spec.name} in the model configuration refers to an output index which doesn't exist. "
                f"This model has {len(results)} outputs",
                Code.INVALID_ARG,
            )
        if isinstance(result, torch.Tensor):
            return self._array(spec, result)
        if isinstance(result, list) and all(isinstance(element, str) for element in result):
            return self._strings(spec, result)
        raise BackendError(
            f"output '{spec.name}' must be of type Tensor or List[str], received {type(result).__name__}",
            Code.INVALID_ARG,
        )

    def _array(self, spec: TensorSpec, tensor: torch.Tensor) -> npt.NDArray[Any]:
        provided = _DATATYPES.get(tensor.dtype)
        if provided != spec.datatype:
            raise BackendError(
                f"configuration expects datatype TYPE_{spec.datatype} for output '{spec.name}', model provides "
                f"{f'TYPE_{provided}' if provided else tensor.dtype}",
                Code.INVALID_ARG,
            )
        tensor = tensor.detach()
        if tensor.untyped_storage().data_ptr() in self._module_storages:
            # The module may write to its buffers before the response is sent.
            tensor = tensor.clone()
        tensor = tensor.cpu().contiguous()
        # numpy has no bfloat16: return the bits.
        array: npt.NDArray[Any] = (tensor.view(torch.uint16) if provided == "BF16" else tensor).numpy()
        if array.ndim == 0 and self.plan.source.config.max_batch_size == 0:
            return array.reshape([1] * len(spec.dims))
        return array

    def _strings(self, spec: TensorSpec, texts: list[str]) -> npt.NDArray[Any]:
        if spec.datatype != BYTES:
            raise BackendError(
                f"configuration expects datatype TYPE_{spec.datatype} for output '{spec.name}', model provides "
                "List[str]: TYPE_STRING",
                Code.INVALID_ARG,
            )
        array = np.empty(len(texts), dtype=np.object_)
        array[:] = [text.encode() for text in texts]
        return array


def device_of(plan: InstancePlan) -> torch.device | None:
    """Return the device of an instance, None if the model places itself (KIND_MODEL)."""
    if plan.kind is InstanceKind.MODEL:
        return None
    if plan.kind is InstanceKind.GPU:
        if torch.cuda.is_available():
            return torch.device("cuda", plan.device_id)
        text = f"instance '{plan.name}' is KIND_GPU, but this PyTorch has no CUDA: it runs on the CPU"
        plan.source.report("kind_gpu_on_cpu", text)
    return torch.device("cpu")


def forward_arguments(module: torch.jit.ScriptModule) -> list[Any]:
    """Return the arguments of `forward` without the module itself."""
    forward: Any = module.forward
    arguments = list(forward.schema.arguments)
    return arguments[1:] if arguments and arguments[0].type.kind() == "ClassType" else arguments


def read_arguments(path: Path) -> list[str]:
    """Return the names of the arguments of `forward` of the module in a file. Raises RuntimeError."""
    return [argument.name for argument in forward_arguments(_load(path, torch.device("cpu")))]


def _load(path: Path, device: torch.device | None) -> torch.jit.ScriptModule:
    module: torch.jit.ScriptModule = torch.jit.load(str(path), map_location=device)  # type: ignore[no-untyped-call]
    return module


def _set(name: str, setter: Any, value: Any, model: str, report: Report) -> None:
    try:
        setter(value)
    except RuntimeError as error:
        # For example the number of inter-op threads after the first use of the pool.
        report("parameter_ignored", f"parameter '{name}' of model '{model}' has no effect: {error}")


def _disable_cudnn(disabled: bool) -> None:
    torch.backends.cudnn.enabled = not disabled


def _texts(name: str, array: npt.NDArray[Any]) -> list[str]:
    texts = []
    for index, element in enumerate(array.ravel()):
        try:
            texts.append(element.decode())
        except UnicodeDecodeError as error:
            raise InvalidRequest(
                f"input '{name}': element {index} is not UTF-8 ({error.reason} at byte {error.start}); "
                "strings of TorchScript must be UTF-8"
            ) from error
    return texts


def _results(result: Any) -> Sequence[Any] | Mapping[str, Any]:
    if isinstance(result, Mapping):
        return result
    if isinstance(result, tuple):
        return result
    # A list of strings is one output, one of tensors is several.
    if isinstance(result, list) and not all(isinstance(element, str) for element in result):
        return result
    return (result,)


def _explain(error: Exception) -> str:
    """Return the last line of a trace, and the last line of the model's code in it."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    last = next((line for line in reversed(lines) if not line.startswith(" ")), type(error).__name__)
    places = [line.strip() for line in lines if line.lstrip().startswith("File ")]
    return f"{last} ({places[-1]})" if places else last
