"""`backend: "onnxruntime"`: ONNX models, a session or two per instance.

Parameters, `optimization` and `--backend-config` settings are those of Triton's onnxruntime backend.
"""

import ctypes
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from logging import getLogger
from mmap import ACCESS_READ, mmap
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from conch.base.errors import BackendError, Code, ConfigError, InvalidRequest, ModelLoadError
from conch.base.extras import install_command
from conch.domain.files.signature import Signature, TensorInfo
from conch.domain.model_config import ModelConfig
from conch.domain.tensor import BYTES, NUMPY_DTYPES
from conch.machine.cores import usable_cores
from conch.server.backends.base import Backend, Instance, InstancePlan, ModelSource, report_threads
from conch.server.backends.model_file import model_path
from conch.server.backends.native_options import checked_session_entry, library_path, thread_count
from conch.server.backends.onnxruntime.accelerators import CPU, CUDA, choose
from conch.server.backends.onnxruntime.thread_choice import ThreadChoice, ThreadChoices
from conch.server.backends.openvino.options import accelerator_options
from conch.server.backends.parameters import BOOLEANS, chosen, whole_number
from conch.server.backends.signature import check_signature, completed
from conch.server.backends.stacking import BF16_BITS
from conch.server.backends.threaded import Arrays, Lanes, ThreadedInstance

_log = getLogger(__name__)

# Older versions open external weights by absolute paths, `..` and links.
_CONFINED_SINCE = (1, 24)
_MODEL_FILE = "model.onnx"

# Element types of onnxruntime → wire datatypes.
_DATATYPES = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(bfloat16)": "BF16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(string)": "BYTES",
}
_ONNX_BFLOAT16 = 16  # TensorProto.DataType.BFLOAT16

_GRAPH_LEVELS = {
    -1: ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    0: ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
    1: ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    2: ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
}
_EXECUTION_MODES = {"0": ort.ExecutionMode.ORT_SEQUENTIAL, "1": ort.ExecutionMode.ORT_PARALLEL}

_VERSION = tuple(int(number) for number in ort.__version__.split(".")[:2])
_SPIN_DURATION_SINCE = (1, 26)

# The largest model with a second session.
_MAX_TWICE_BYTES = 256 * 2**20
_MAX_MEASURED_S = 5.0

_INVALID_ARGUMENT = 2  # of OrtErrorCode
_ORT_ERROR = re.compile(r"^\[ONNXRuntimeError\] : (?P<code>\d+) : \w+ : (?P<message>.*)$", re.DOTALL)


class OnnxRuntimeBackend(Backend):
    """ONNX models through onnxruntime."""

    name = "onnxruntime"
    default_model_filename = _MODEL_FILE
    default_cpu_instance_count = 2  # Triton's

    def __init__(self) -> None:
        self._choices = ThreadChoices()

    @property
    def can_use_gpus(self) -> bool:
        return CUDA in ort.get_available_providers()

    async def complete(self, source: ModelSource) -> Mapping[str, Any]:
        return await completed(source, _read_signature)

    def instance(self, plan: InstancePlan) -> Instance:
        return OnnxRuntimeInstance(plan, self._choices)


backend = OnnxRuntimeBackend


class OnnxRuntimeInstance(ThreadedInstance):
    """One onnxruntime session, and another one for concurrent runs."""

    def __init__(self, plan: InstancePlan, choices: ThreadChoices) -> None:
        super().__init__(plan)
        self._choices = choices
        self.session: ort.InferenceSession | None = None
        self._part_session: ort.InferenceSession | None = None  # with few threads, for lanes and parts of batches
        # Runs the model if it requires OpenVINO and this onnxruntime does not have it.
        self._substitute: ThreadedInstance | None = None
        self._run_options: ort.RunOptions | None = None
        self._inputs: dict[str, TensorInfo] = {}
        # numpy has no bfloat16, so models that use it are run with OrtValues.
        self._has_bf16 = False
        self.fills_rooms = False

    def load(self) -> None:
        source = self.plan.source
        accelerators = choose(self.plan, ort.get_available_providers())
        if accelerators.openvino is not None:
            self._substitute = _on_openvino(self.plan, accelerators.openvino)
            self._substitute.load()
            self.concurrent_runs = self._substitute.concurrent_runs
            return
        options = _session_options(self.plan)
        sessions = _Sessions(self.plan, options, accelerators.providers)
        cores = options.intra_op_num_threads
        on_cpu = [name for name, _ in accelerators.providers] == [CPU]
        choice = (self._measured(sessions, cores) if on_cpu and cores > 1 else None) or ThreadChoice(cores)
        options.intra_op_num_threads = choice.alone
        self.session = sessions.get(choice.alone)
        signature = _signature(self.session)
        check_signature(source.config, signature)
        if self.session.get_providers() == [CPU]:
            self.concurrent_runs = cores
        if choice.lanes > 1 and self.overlaps:
            self._part_session = sessions.get(choice.lane_threads)
            self.concurrent_runs = choice.lanes
            self.lanes = Lanes(choice.lanes, choice.break_even, choice.patience)
        self._inputs = {info.name: info for info in (*signature.inputs, *signature.optional_inputs)}
        datatypes = {info.datatype for info in (*self._inputs.values(), *signature.outputs)}
        self._has_bf16 = "BF16" in datatypes
        self.fills_rooms = self.session.get_providers() == [CPU] and not datatypes & {"BF16", BYTES}
        self._run_options = _run_options(source.config.parameters)
        self._report(accelerators.providers, choice.alone)
        _log.info(
            "instance '%s': %s, %d intra-op threads%s (%d cores, %d instances)",
            self.plan.name,
            ", ".join(self.session.get_providers()),
            choice.alone,
            f", or {choice.lanes} concurrent runs with {choice.lane_threads}" if self.lanes.number > 1 else "",
            usable_cores(),
            self.plan.siblings,
        )

    def _measured(self, sessions: "_Sessions", cores: int) -> ThreadChoice | None:
        """Return how many threads and concurrent runs suit the model; None where that is set or cannot be measured."""
        source = self.plan.source
        config = source.config
        wanted = chosen({**source.settings, **config.parameters}, "measure_threads", BOOLEANS, True)
        inputs = _zeros(config)
        if not wanted or not inputs or _threads(source, "intra_op_thread_count"):
            return None
        if _file_bytes(source) > _MAX_TWICE_BYTES:
            return None
        options = ort.RunOptions()
        limit = Timer(_MAX_MEASURED_S, setattr, (options, "terminate", True))
        limit.start()

        def open_run(threads: int) -> Callable[[], object]:
            return partial(sessions.get(threads).run, None, inputs, options)

        shapes = {name: array.shape for name, array in inputs.items()}
        identity = ort.__version__, shapes, config.parameters, config.document.get("optimization")
        try:
            return self._choices.get(model_path(source, _MODEL_FILE, self.plan.name), identity, cores, open_run)
        except Exception as error:  # zeros may not be valid inputs; what is wrong with the model, `load` finds out
            _log.debug("instance '%s': threads are not measured: %s", self.plan.name, error)
            return None
        finally:
            limit.cancel()

    def _report(self, asked: Sequence[tuple[str, dict[str, str]]], threads: int) -> None:
        """Report providers that onnxruntime has left out, which it does without an error, and too many threads."""
        assert self.session is not None
        left_out = [provider for provider, _ in asked if provider not in self.session.get_providers()]
        if left_out:
            text = f"instance '{self.plan.name}': onnxruntime cannot use {', '.join(left_out)} on this machine"
            self.plan.source.report("provider_fallback", text)
        report_threads(self.plan, threads)

    def compute(
        self, inputs: Arrays, outputs: Sequence[str], filled: Arrays | None = None
    ) -> Mapping[str, npt.NDArray[Any]]:
        """Run the session. Raises BackendError with onnxruntime's code and message."""
        return self._computed(self.session, inputs, outputs, filled)

    def prepare_parts(self) -> None:
        """Open a session with one thread: several runs in one session would take its threads from each other.

        DenseNet on two cores made 62 inferences a second in two runs of such a session, 48 in two runs of one with two
        threads, and 57 in one run of that. A large model is not held twice.
        """
        if (
            self._substitute is None
            and self._part_session is None
            and _file_bytes(self.plan.source) <= _MAX_TWICE_BYTES
        ):
            options = _session_options(self.plan)
            options.intra_op_num_threads = 1
            self._part_session = _open(self.plan.source, options, [CPU], self.plan.name)

    def compute_part(
        self, inputs: Arrays, outputs: Sequence[str], filled: Arrays | None = None
    ) -> Mapping[str, npt.NDArray[Any]]:
        return self._computed(self._part_session or self.session, inputs, outputs, filled)

    def _computed(
        self, session: "ort.InferenceSession | None", inputs: Arrays, outputs: Sequence[str], filled: Arrays | None
    ) -> Mapping[str, npt.NDArray[Any]]:
        if self._substitute is not None:
            return self._substitute.compute(inputs, outputs)
        assert session is not None
        feed = {name: self._feed_array(name, array) for name, array in inputs.items()}
        if filled and (made := self._run_into(session, outputs, feed, filled)) is not None:
            return made
        run = self._run_values if self._has_bf16 else self._run_arrays
        try:
            results = run(session, list(outputs), feed)
        except Exception as error:
            code, message = _explain(error)
            kind = Code.INVALID_ARG if code == _INVALID_ARGUMENT else Code.INTERNAL
            raise BackendError(f"onnx runtime error {code}: {message} (instance '{self.plan.name}')", kind) from error
        return dict(zip(outputs, results, strict=True))

    def unload(self) -> None:
        self.session = self._part_session = None
        if self._substitute is not None:
            self._substitute.unload()

    def _feed_array(self, name: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return an input as onnxruntime takes it: strings as `str`, scalars without dimensions."""
        if array.dtype == np.object_:
            array = _texts(name, array)
        return array if self._inputs[name].dims else array.reshape(())

    def _run_arrays(self, session: ort.InferenceSession, outputs: list[str], feed: Arrays) -> list[npt.NDArray[Any]]:
        results: list[npt.NDArray[Any]] = session.run(outputs, feed, self._run_options)
        return results

    def _run_into(
        self, session: ort.InferenceSession, outputs: Sequence[str], feed: Arrays, filled: Arrays
    ) -> Arrays | None:
        """Run the session so that it writes outputs into `filled`; None if it fails, for example by another shape."""
        binding = session.io_binding()
        for name, array in feed.items():
            binding.bind_cpu_input(name, array)
        for name in outputs:
            target = filled.get(name)
            if target is None:
                binding.bind_output(name)
            else:
                binding.bind_output(name, "cpu", 0, target.dtype.type, target.shape, target.ctypes.data)
        try:
            session.run_with_iobinding(binding, self._run_options)
        except Exception as error:
            _log.debug("instance '%s': outputs are not written in place: %s", self.plan.name, error)
            self.fills_rooms = False
            return None
        values = zip(outputs, binding.get_outputs(), strict=True)
        return {name: filled[name] if name in filled else value.numpy() for name, value in values}

    def _run_values(self, session: ort.InferenceSession, outputs: list[str], feed: Arrays) -> list[npt.NDArray[Any]]:
        values = {name: self._value(name, array) for name, array in feed.items()}
        return [_bits_or_array(value) for value in session.run_with_ort_values(outputs, values, self._run_options)]

    def _value(self, name: str, array: npt.NDArray[Any]) -> ort.OrtValue:
        if self._inputs[name].datatype == "BF16":
            return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, _ONNX_BFLOAT16)
        return ort.OrtValue.ortvalue_from_numpy(array)


class _Sessions:
    """The sessions of one instance by their threads, opened on first use."""

    def __init__(self, plan: InstancePlan, options: ort.SessionOptions, providers: Sequence[Any]) -> None:
        self._plan = plan
        self._options = options
        self._providers = providers
        self._open: dict[int, ort.InferenceSession] = {}

    def get(self, threads: int) -> ort.InferenceSession:
        """Return a session with that many threads. Raises ModelLoadError."""
        if threads not in self._open:
            self._options.intra_op_num_threads = threads
            self._open[threads] = _open(self._plan.source, self._options, self._providers, self._plan.name)
        return self._open[threads]


def _zeros(config: ModelConfig) -> Arrays | None:
    """Return inputs of one item; None where their shapes or contents must be known to make valid ones."""
    if config.batch_inputs or any(
        spec.datatype not in NUMPY_DTYPES or spec.datatype == BYTES or -1 in (spec.reshape or spec.dims)
        for spec in config.inputs
    ):
        return None
    batch = (1,) if config.max_batch_size > 0 else ()
    return {
        spec.name: np.zeros(
            (*batch, *(spec.dims if spec.reshape is None else spec.reshape)), NUMPY_DTYPES[spec.datatype]
        )
        for spec in config.inputs
        if not spec.optional
    }


def _file_bytes(source: ModelSource) -> int:
    """Return the size of a version's files, which include weights outside of the model's file."""
    return sum(path.stat().st_size for path in source.version_directory.rglob("*") if path.is_file())


def _on_openvino(plan: InstancePlan, parameters: Mapping[str, str]) -> ThreadedInstance:
    """Return an instance of the openvino backend for the same plan. Raises ModelLoadError if it is not installed."""
    try:
        from conch.server.backends.openvino.backend import OpenVinoInstance
    except ModuleNotFoundError as error:
        raise ModelLoadError(
            f"Execution Accelerator 'openvino' of model instance '{plan.name}': this onnxruntime has no OpenVINO, and "
            f"the package 'openvino' is not installed: {install_command('openvino')}"
        ) from error
    _log.info("instance '%s': this onnxruntime has no OpenVINO; the openvino package runs the model", plan.name)
    return OpenVinoInstance(plan, accelerator_options(parameters, {}))


def _texts(name: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Decode BYTES elements: onnxruntime's Python API takes only `str`. Raises InvalidRequest for invalid UTF-8."""
    texts = np.empty(array.size, dtype=np.object_)
    for index, element in enumerate(array.ravel()):
        try:
            texts[index] = element.decode()
        except UnicodeDecodeError as error:
            raise InvalidRequest(
                f"input '{name}': element {index} is not UTF-8 ({error.reason} at byte {error.start}); "
                "string tensors of ONNX models must be UTF-8"
            ) from error
    return texts.reshape(array.shape)


def _bits_or_array(value: ort.OrtValue) -> npt.NDArray[Any]:
    if value.element_type() != _ONNX_BFLOAT16:
        array: npt.NDArray[Any] = value.numpy()
        return array
    data = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    return np.frombuffer(data, dtype=BF16_BITS).reshape(value.shape())


def _read_signature(source: ModelSource) -> Signature:
    """Read the signature from the model file, without graph optimization."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.disable_prepacking", "1")
    _register_operations(source, options)
    return _signature(_open(source, options, [CPU], source.config.name))


def _signature(session: ort.InferenceSession) -> Signature:
    return Signature(
        inputs=tuple(_info(node) for node in session.get_inputs()),
        outputs=tuple(_info(node) for node in session.get_outputs()),
        optional_inputs=tuple(_info(node) for node in session.get_overridable_initializers()),
    )


def _info(node: Any) -> TensorInfo:
    # Symbolic dimensions are names, unknown ones None.
    dims = tuple(dim if isinstance(dim, int) and dim >= 0 else -1 for dim in node.shape or ())
    return TensorInfo(node.name, _DATATYPES.get(node.type, ""), dims, node.type)


def _refuse_outside_weights(path: Path, instance: str) -> None:
    """Raise ModelLoadError if this onnxruntime would read the weights of a model from any file of the machine."""
    version = tuple(map(int, re.findall(r"\d+", ort.__version__)[:2]))
    if version >= _CONFINED_SINCE or not path.stat().st_size:
        return
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        if data.find(b"location") < 0:  # the key of the path, in a tensor of any graph
            return
    raise ModelLoadError(
        f"'{path}' may name files of weights, which onnxruntime {ort.__version__} also reads outside of the model's "
        f"folder; install onnxruntime>={'.'.join(map(str, _CONFINED_SINCE))} (model instance '{instance}')"
    )


def _open(
    source: ModelSource, options: ort.SessionOptions, providers: Sequence[Any], instance: str
) -> ort.InferenceSession:
    path = model_path(source, _MODEL_FILE, instance)
    _refuse_outside_weights(path, instance)
    try:
        return ort.InferenceSession(str(path), options, providers=list(providers))
    except Exception as error:
        code, message = _explain(error)
        raise ModelLoadError(
            f"onnx runtime error {code}: {message} ('{path}' for model instance '{instance}')"
        ) from error


def _explain(error: Exception) -> tuple[int, str]:
    """Return onnxruntime's error code and message; 1 is its code for a general failure."""
    match = _ORT_ERROR.match(str(error))
    return (int(match["code"]), match["message"]) if match else (1, f"{type(error).__name__}: {error}")


def _session_options(plan: InstancePlan) -> ort.SessionOptions:
    """Return session options from `optimization`, parameters and settings.

    Without a thread count, the instances share the cores: by onnxruntime's default each would start as many threads as
    there are cores.
    """
    source = plan.source
    parameters = source.config.parameters
    options = ort.SessionOptions()
    options.logid = plan.name
    options.log_severity_level = 3  # errors
    options.graph_optimization_level = _graph_level(source.config.document)
    options.execution_mode = chosen(parameters, "execution_mode", _EXECUTION_MODES, ort.ExecutionMode.ORT_SEQUENTIAL)
    options.intra_op_num_threads = _threads(source, "intra_op_thread_count") or max(1, usable_cores() // plan.siblings)
    options.inter_op_num_threads = _threads(source, "inter_op_thread_count")
    options.enable_cpu_mem_arena = chosen(parameters, "enable_mem_arena", BOOLEANS, options.enable_cpu_mem_arena)
    options.enable_mem_pattern = chosen(parameters, "enable_mem_pattern", BOOLEANS, options.enable_mem_pattern)
    configured = {key: value for key, value in parameters.items() if key.startswith("session.")}
    entries = _spinning() | {key: checked_session_entry(source, key, value) for key, value in configured.items()}
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    _register_operations(source, options)
    return options


def _spinning() -> dict[str, str]:
    """Return the default session entries for how threads wait for the next operator: spin for 100 µs, then sleep.

    Waking a thread that sleeps takes longer than many operators: without spinning, DenseNet took 60 ms instead of 35 on
    two idle cores. Spinning for milliseconds, onnxruntime's default, takes the cores from the event loop and from other
    models: beside one busy process, DenseNet took 121 ms instead of 85. 100 µs is as good as the better of the two in
    both cases; 20 µs was not always.
    """
    if _VERSION < _SPIN_DURATION_SINCE:  # only the long default could be had
        return {"session.intra_op.allow_spinning": "0"}
    return {"session.intra_op.allow_spinning": "1", "session.intra_op.spin_duration_us": "100"}


def _run_options(parameters: Mapping[str, str]) -> ort.RunOptions | None:
    """Return the options of every run, None if there are none, which is faster."""
    key = "memory.enable_memory_arena_shrinkage"
    if key not in parameters:
        return None
    options = ort.RunOptions()
    options.add_run_config_entry(key, parameters[key])
    return options


def _register_operations(source: ModelSource, options: ort.SessionOptions) -> None:
    for filename in source.config.document.get("model_operations", {}).get("op_library_filename", []):
        path = library_path(source, filename, "model_operations.op_library_filename")
        try:
            options.register_custom_ops_library(str(path))
        except Exception as error:
            raise ModelLoadError(
                f"model_operations of model '{source.config.name}': '{filename}' cannot be loaded: {_explain(error)[1]}"
            ) from error


def _graph_level(document: Mapping[str, Any]) -> ort.GraphOptimizationLevel:
    level = document.get("optimization", {}).get("graph", {}).get("level", 0)
    if level not in _GRAPH_LEVELS:
        raise ConfigError(f"optimization.graph.level is {level}; allowed: {', '.join(map(str, sorted(_GRAPH_LEVELS)))}")
    return _GRAPH_LEVELS[level]


def _threads(source: ModelSource, key: str) -> int:
    """Return a thread count from the model's parameters, else from `--backend-config`; 0 if neither has it."""
    configured = thread_count(source.config.parameters.get(key, "0"), key, source.config.name)
    return whole_number(configured, key) or whole_number(source.settings.get(key, "0"), key)
