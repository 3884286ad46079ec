"""Backend registry: `backend: "x"` is `backends/x.py`, `backends/x/backend.py` or an installed package.

It is imported on first use.

A package provides a backend by an entry point of the group `conch.backends`: `x = "package.module:Backend"`.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from conch.base.errors import Code, ModelLoadError
from conch.base.extras import install_command
from conch.base.suggestion import closest
from conch.server.backends.base import Backend
from conch.server.backends.openvino.options import SETTINGS as OPENVINO
from conch.server.backends.processes.sandbox import SETTINGS as SANDBOX
from conch.server.backends.python.settings import SETTINGS as PYTHON

ENTRY_POINTS = "conch.backends"

# Backend → the distribution that it needs and the extra that installs it.
_REQUIREMENTS = {
    "fil": ("treelite", "fil"),
    "identity": ("numpy", "python"),
    "onnxruntime": ("onnxruntime", "onnxruntime"),
    "openvino": ("openvino", "openvino"),
    # Its packages must be in the environment that its engines run in, which may not be the server's.
    "openvino_genai": ("numpy", "python"),
    "python": ("numpy", "python"),
    "pytorch": ("torch", "pytorch"),
    "scripted": ("numpy", "python"),
    "tensorrt": ("tensorrt", "tensorrt"),
    "tensorrtllm": ("numpy", "python"),
    "vllm": ("numpy", "python"),
}


# Names of the backends in other tools and libraries.
_ALIASES = {
    "libtorch": "pytorch",
    "onnx": "onnxruntime",
    "onnxruntime_onnx": "onnxruntime",
    "ort": "onnxruntime",
    "openvino-genai": "openvino_genai",
    "py": "python",
    "pytorch_libtorch": "pytorch",
    "tensorrt-llm": "tensorrtllm",
    "tensorrt_llm": "tensorrtllm",
    "tensorrt_plan": "tensorrt",
    "torch": "pytorch",
    "trt": "tensorrt",
    "trtllm": "tensorrtllm",
    "xgboost": "fil",
    "lightgbm": "fil",
}
# Backends of Triton that Conch does not have, and the alternatives.
_ALTERNATIVES = {
    "tensorflow": "'openvino' reads a SavedModel; or convert the model to ONNX (tf2onnx) for 'onnxruntime'",
    "dali": "decode and resize in a 'python' model",
}


class BackendRegistry:
    """The backends of one server, started at first use and stopped together.

    `arguments` are the constructor arguments by the backend's name.
    """

    def __init__(self, arguments: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        self._arguments = arguments or {}
        self._backends: dict[str, Backend] = {}
        self._starting: dict[str, asyncio.Task[Backend]] = {}

    def __iter__(self) -> Iterator[Backend]:
        return iter(self._backends.values())

    async def get(self, name: str) -> Backend:
        """Return the started backend. Raises ModelLoadError if there is none of that name."""
        backend = self._backends.get(name)
        if backend is not None:
            return backend
        if name not in self._starting:
            self._starting[name] = asyncio.create_task(self._start(name))
            self._starting[name].add_done_callback(lambda _: self._starting.pop(name))
        return await self._starting[name]

    async def stop(self) -> None:
        """Stop all started backends."""
        for backend in self._backends.values():
            await backend.stop()
        self._backends.clear()

    async def _start(self, name: str) -> Backend:
        # In a thread: importing a framework may take seconds.
        backend = await asyncio.to_thread(load_backend, name, self._arguments.get(name, {}))
        await backend.start()
        self._backends[name] = backend
        return backend


def load_backend(name: str, arguments: Mapping[str, Any]) -> Backend:
    """Import and make a backend. Raises ModelLoadError with the remedy if it is unknown, not installed or ambiguous."""
    providers = [entry_point for entry_point in entry_points(group=ENTRY_POINTS) if entry_point.name == name]
    if name in _REQUIREMENTS:
        if providers:
            raise ModelLoadError(
                f"backend '{name}' is built in, and {_origins(providers)} provides another; uninstall the package"
            )
        backend: Backend = _import_builtin(name).backend(**arguments)
        return backend
    if not providers:
        raise _unknown(name)
    if len(providers) > 1:
        raise ModelLoadError(f"backend '{name}' is provided by {_origins(providers)}; uninstall all but one")
    return _make_installed(providers[0])


def requirement(name: str) -> tuple[str, str] | None:
    """Return the package that a backend needs and the extra that installs it, None for a backend from a package.

    Imports nothing. Raises ModelLoadError if there is no such backend.
    """
    if name in _REQUIREMENTS:
        return _REQUIREMENTS[name]
    if any(entry_point.name == name for entry_point in entry_points(group=ENTRY_POINTS)):
        return None
    raise _unknown(name)


def ineffective_settings(names: Iterable[str]) -> list[str]:
    """Return a notice for each backend that `--backend-config` names and that does not exist."""
    missing = sorted(set(names).difference(_REQUIREMENTS, ("",)))
    known = _known() if missing else []
    return [
        f"--backend-config={name},… has no effect: there is no backend '{name}'{_did_you_mean(name, known, '; did')}"
        for name in missing
        if name not in known
    ]


def _known() -> list[str]:
    return sorted({*_REQUIREMENTS, *(entry_point.name for entry_point in entry_points(group=ENTRY_POINTS))})


def _did_you_mean(name: str, known: Sequence[str], begin: str) -> str:
    if name in _ALTERNATIVES:  # not misspelt
        return ""
    match = _ALIASES.get(name.lower()) or closest(name.lower(), known)
    return f"{begin} you mean '{match}'?" if match else ""


def _unknown(name: str) -> ModelLoadError:
    known = _known()
    text = f"unable to find backend library for backend '{name}', try specifying runtime on the model configuration."
    if advice := _ALTERNATIVES.get(name):
        text += f" This server does not have it: {advice}."
    else:
        text += _did_you_mean(name, known, " Did")
    return ModelLoadError(f"{text} This server has: {', '.join(known)}", Code.INVALID_ARG)


def _import_builtin(name: str) -> Any:
    package, extra = _REQUIREMENTS[name]
    try:
        module = import_module(f"conch.server.backends.{name}")
        return import_module(f"{module.__name__}.backend") if hasattr(module, "__path__") else module
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise ModelLoadError(f"backend '{name}' needs the package '{package}': {install_command(extra)}") from error


def _make_installed(entry_point: EntryPoint) -> Backend:
    """Make the backend of an installed package; any exception of its code becomes a ModelLoadError."""
    label = f"backend '{entry_point.name}' ({entry_point.value} of {_origins([entry_point])})"
    try:
        backend = entry_point.load()()
    except Exception as error:
        raise ModelLoadError(f"{label} cannot be made: {type(error).__name__}: {error}") from error
    if not isinstance(backend, Backend):
        raise ModelLoadError(f"{label} is a {type(backend).__name__}, not a conch.server.backends.base.Backend")
    return backend


def _origins(providers: Sequence[EntryPoint]) -> str:
    return " and ".join(
        f"the package '{entry_point.dist.name}'" if entry_point.dist else "a package" for entry_point in providers
    )


# The settings of `--backend-config` by backend, to name those that have no effect.
_BATCH = ("default-max-batch-size",)
_ENGINE = ("env-path", "stub-timeout-seconds", *SANDBOX)
_SETTINGS: dict[str, tuple[str, ...]] = {
    "fil": _BATCH,
    "identity": (),
    "onnxruntime": (*_BATCH, "intra_op_thread_count", "inter_op_thread_count", "measure_threads"),
    "openvino": (*_BATCH, *OPENVINO),
    "openvino_genai": _ENGINE,
    "python": (*PYTHON, *SANDBOX),
    "pytorch": (*_BATCH, *PYTHON, *SANDBOX),
    "scripted": _ENGINE,
    "tensorrt": (),
    "tensorrtllm": _ENGINE,
    "vllm": _ENGINE,
}
_ENVIRONMENT = (
    "the parameter EXECUTION_ENV_PATH in the config.pbtxt of a Python model names its environment; "
    "env-path is a setting of engines"
)


def unknown_settings(settings: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield a notice for each setting (backend, key) that no built-in backend reads; Triton ignores those silently.

    The backend "" stands for all. Settings of backends of other packages are unknown here, and pass.
    """
    every = sorted({key for keys in _SETTINGS.values() for key in keys})
    for backend, key in dict.fromkeys(settings):
        known = every if not backend else _SETTINGS.get(backend)
        if known is None or key in known:
            continue
        flag = f"--backend-config={backend},{key}" if backend else f"--backend-config={key}"
        owner = f"backend '{backend}' has no setting '{key}'" if backend else f"no backend has a setting '{key}'"
        yield f"{flag} has no effect: {owner}{_remedy(backend, key, known)}"


def _remedy(backend: str, key: str, known: Iterable[str]) -> str:
    if key == "env-path" and backend in ("python", "pytorch"):
        return f"; {_ENVIRONMENT}"
    names = {name.lower().replace("_", "-"): name for name in known}
    match = closest(key.lower().replace("_", "-"), names)
    meant = f"; did you mean '{names[match]}'?" if match else ""
    return f"{meant or ';'} it has: {', '.join(sorted(known))}" if names and backend else meant
