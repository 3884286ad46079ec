"""From `backend: "x"` to `conch/backends/x.py`, imported when a model first asks for it."""

import asyncio
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from conch.backends.base import Backend
from conch.errors import ModelLoadError

# Triton's `platform` strings of before there were backends.
BACKEND_OF_PLATFORM = {
    "onnxruntime_onnx": "onnxruntime",
    "python": "python",
    "openvino": "openvino",
    "pytorch_libtorch": "pytorch",
    "tensorrt_plan": "tensorrt",
}

# Backend → the package it needs and the extra that brings it. Each has a module of its name with a class `Backend`.
_REQUIREMENTS = {
    "identity": ("numpy", "python"),
    "onnxruntime": ("onnxruntime", "onnxruntime"),
    # Its packages are looked for where its engines run, which may be an environment of theirs.
    "openvino_genai": ("numpy", "python"),
    "python": ("numpy", "python"),
    "scripted": ("numpy", "python"),
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
    """Import and make a backend. Raises ModelLoadError naming the cure if it is unknown or not installed."""
    if name not in _REQUIREMENTS:
        known = ", ".join(sorted(_REQUIREMENTS))
        raise ModelLoadError(f"unable to find backend '{name}'; this server has: {known}")
    package, extra = _REQUIREMENTS[name]
    try:
        module = import_module(f"conch.backends.{name}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise ModelLoadError(
            f"backend '{name}' needs the package '{package}': pip install 'conch-server[{extra}]'"
        ) from error
    backend: Backend = module.backend(**arguments)
    return backend
