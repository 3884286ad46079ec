"""From `backend: "x"` to `conch/backends/x/backend.py`, or to an installed package that provides `x`, on first use.

A package brings a backend by an entry point of the group `conch.backends`: `x = "package.module:Backend"`.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from conch.backends.base import Backend
from conch.errors import Code, ModelLoadError

# Triton's `platform` strings of before there were backends.
BACKEND_OF_PLATFORM = {
    "onnxruntime_onnx": "onnxruntime",
    "python": "python",
    "openvino": "openvino",
    "pytorch_libtorch": "pytorch",
    "torch_aoti": "pytorch",
    "tensorrt_plan": "tensorrt",
}

ENTRY_POINTS = "conch.backends"

# Backend → the distribution it needs and the extra that installs it. `conch/backends/<name>/backend.py` defines it.
_REQUIREMENTS = {
    "fil": ("treelite", "fil"),
    "identity": ("numpy", "python"),
    "onnxruntime": ("onnxruntime", "onnxruntime"),
    "openvino": ("openvino", "openvino"),
    # Its packages are looked for where its engines run, which may be an environment of theirs.
    "openvino_genai": ("numpy", "python"),
    "python": ("numpy", "python"),
    "pytorch": ("torch", "pytorch"),
    "scripted": ("numpy", "python"),
    "tensorrt": ("tensorrt", "tensorrt"),
    "tensorrtllm": ("numpy", "python"),
    "vllm": ("numpy", "python"),
}


# Names that other tools and libraries have for them.
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
# Backends of Triton's that are not there, and what takes their place.
_ELSEWHERE = {
    "tensorflow": "convert the model to ONNX (tf2onnx) for 'onnxruntime', or call TensorFlow in a 'python' model",
    "dali": "decode and resize in a 'python' model",
}


class BackendRegistry:
    """The backends of one server, started at first use and stopped together.

    `arguments` are what backends are made with, by the backend's name.
    """

    def __init__(self, arguments: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        self._arguments = arguments or {}
        self._backends: dict[str, Backend] = {}
        self._starting: dict[str, asyncio.Task[Backend]] = {}

    def __iter__(self) -> Iterator[Backend]:
        return iter(self._backends.values())

    async def get(self, name: str) -> Backend:
        """Return the backend, started. Raises ModelLoadError if this server has none of that name."""
        backend = self._backends.get(name)
        if backend is not None:
            return backend
        if name not in self._starting:
            self._starting[name] = asyncio.create_task(self._start(name))
            self._starting[name].add_done_callback(lambda _: self._starting.pop(name))
        return await self._starting[name]

    async def stop(self) -> None:
        """Stop every backend that was used."""
        for backend in self._backends.values():
            await backend.stop()
        self._backends.clear()

    async def _start(self, name: str) -> Backend:
        # Frameworks take their time to import; requests for other models do not wait for it.
        backend = await asyncio.to_thread(load_backend, name, self._arguments.get(name, {}))
        await backend.start()
        self._backends[name] = backend
        return backend


def load_backend(name: str, arguments: Mapping[str, Any]) -> Backend:
    """Import and make a backend. Raises ModelLoadError naming the cure if it is unknown, not installed or ambiguous."""
    brought = [each for each in entry_points(group=ENTRY_POINTS) if each.name == name]
    if name in _REQUIREMENTS:
        if brought:
            raise ModelLoadError(f"backend '{name}' is this server's own, and {_origins(brought)} brings one, too")
        backend: Backend = _own_module(name).backend(**arguments)
        return backend
    if not brought:
        raise _unknown(name)
    if len(brought) > 1:
        raise ModelLoadError(f"backend '{name}' is brought by {_origins(brought)}: only one can be installed")
    return _made(brought[0])


def requirement(name: str) -> tuple[str, str] | None:
    """Return the package that a backend needs and the extra that brings it, None for one that a package has brought.

    Nothing is imported. Raises ModelLoadError if there is no such backend.
    """
    if name in _REQUIREMENTS:
        return _REQUIREMENTS[name]
    if any(each.name == name for each in entry_points(group=ENTRY_POINTS)):
        return None
    raise _unknown(name)


def ineffective_settings(names: Iterable[str]) -> list[str]:
    """Return a notice for each backend that `--backend-config` names and this server does not have."""
    missing = sorted(set(names).difference(_REQUIREMENTS, ("",)))
    known = _known() if missing else []
    return [
        f"--backend-config={name},… has no effect: there is no backend '{name}'{_did_you_mean(name, known, '; did')}"
        for name in missing
        if name not in known
    ]


def _known() -> list[str]:
    return sorted({*_REQUIREMENTS, *(each.name for each in entry_points(group=ENTRY_POINTS))})


def _did_you_mean(name: str, known: Sequence[str], begin: str) -> str:
    if name in _ELSEWHERE:  # spelt correctly
        return ""
    wanted = _ALIASES.get(name.lower()) or next(iter(get_close_matches(name.lower(), known, n=1)), "")
    return f"{begin} you mean '{wanted}'?" if wanted else ""


def _unknown(name: str) -> ModelLoadError:
    known = _known()
    said = f"unable to find backend library for backend '{name}', try specifying runtime on the model configuration."
    if advice := _ELSEWHERE.get(name):
        said += f" It is not one of this server's: {advice}."
    else:
        said += _did_you_mean(name, known, " Did")
    return ModelLoadError(f"{said} This server has: {', '.join(known)}", Code.INVALID_ARG)


def _own_module(name: str) -> Any:
    package, extra = _REQUIREMENTS[name]
    try:
        return import_module(f"conch.backends.{name}.backend")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise ModelLoadError(
            f"backend '{name}' needs the package '{package}': pip install 'conch-server[{extra}]'"
        ) from error


def _made(entry_point: EntryPoint) -> Backend:
    """Make the backend of an installed package, in whose code anything may go wrong."""
    whose = f"backend '{entry_point.name}' ({entry_point.value} of {_origins([entry_point])})"
    try:
        backend = entry_point.load()()
    except Exception as error:
        raise ModelLoadError(f"{whose} cannot be made: {type(error).__name__}: {error}") from error
    if not isinstance(backend, Backend):
        raise ModelLoadError(f"{whose} is a {type(backend).__name__}, no conch.backends.base.Backend")
    return backend


def _origins(found: Sequence[EntryPoint]) -> str:
    return " and ".join(f"the package '{each.dist.name}'" if each.dist else "a package" for each in found)
