"""An instance of any backend, driven without a server around it."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from conch.base.errors import ConchError
from conch.domain.config.resolve import resolve
from conch.domain.model_config import InstanceKind, ModelConfig
from conch.domain.request import InferRequest, InferResponse
from conch.domain.tensor import Tensor
from conch.server.backends.base import Backend, Instance, InstancePlan, ModelSource
from conch.server.backends.batch import Batch
from conch.server.backends.registry import load_backend
from conch.server.repository.store import Repository


async def complete(directory: Path, settings: Mapping[str, str] | None = None) -> ModelConfig:
    """Read a model directory and complete its configuration, as a server does."""
    files = Repository([directory.parent]).read(directory.name)
    backend = backend_of(files.config)
    version = files.versions_on_disk[0] if files.versions_on_disk else 1
    document = await backend.complete(ModelSource(files.config, version, directory, settings or {}))
    return resolve(document, backend=backend).config


def backend_of(config: ModelConfig) -> Backend:
    """The backend that a configuration names."""
    return load_backend(config.backend, {})


def plan(directory: Path, config: ModelConfig, *, siblings: int = 1, **settings: str) -> InstancePlan:
    """The plan of a CPU instance of version 1."""
    source = ModelSource(config, 1, directory, settings)
    return InstancePlan(source, f"{config.name}_0", InstanceKind.CPU, 0, siblings)


async def started(directory: Path, *, siblings: int = 1, **settings: str) -> Instance:
    """An instance that is up; the caller stops it."""
    config = await complete(directory, settings)
    instance = backend_of(config).instance(plan(directory, config, siblings=siblings, **settings))
    try:
        await instance.start()
    except BaseException:
        await instance.stop()
        raise
    return instance


class Asked:
    """An execution that keeps its answer."""

    def __init__(self, request: InferRequest) -> None:
        self.request = request
        self.cancelled = False
        self.answer: InferResponse | ConchError | None = None

    def on_cancel(self, notify: Callable[[], None]) -> None:
        raise AssertionError("a thread cannot be interrupted")

    def send(self, response: InferResponse) -> None:
        raise AssertionError("no model here is decoupled")

    def finish(self, answer: InferResponse | ConchError | None) -> None:
        assert self.answer is None
        self.answer = answer


async def answers(instance: Instance, *requests: InferRequest) -> list[Any]:
    """Run requests as one batch and return the result or error of each."""
    asked = [Asked(request) for request in requests]
    released = asyncio.Event()
    batch = Batch(asked, lambda _: released.set())
    instance.execute(batch)
    await released.wait()
    assert batch.input_done > 0
    return [execution.answer for execution in asked]


def request(*inputs: Tensor, batch_size: int = 1, outputs: tuple[str, ...] = (), id: str = "") -> InferRequest:
    """A validated request."""
    asked = InferRequest("m", list(inputs), outputs=outputs, id=id)
    asked.batch_size = batch_size
    return asked
