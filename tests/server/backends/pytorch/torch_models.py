"""Small PyTorch models, and an instance driven without a server around it."""

import asyncio
import warnings
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from conch.base.errors import ConchError
from conch.domain.config.resolve import resolve
from conch.domain.model_config import InstanceKind, ModelConfig
from conch.domain.request import InferRequest, InferResponse
from conch.domain.tensor import Tensor
from conch.server.backends.base import Instance, InstancePlan, ModelSource
from conch.server.backends.batch import Batch
from conch.server.backends.pytorch.backend import PyTorchBackend
from conch.server.repository.store import Repository
from tests.server.backends.python.running import Caller

Tensors = Sequence[tuple[str, str, Sequence[int]]]


class Sums(torch.nn.Module):
    """Returns a + b and a - b."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return a + b, a - b


class Doubled(torch.nn.Module):
    """Doubles everything but 99."""

    def forward(self, IN: torch.Tensor) -> torch.Tensor:
        if bool((IN == 99).any()):
            raise ValueError("99 is not to be doubled")
        return IN * 2


class Scaled(torch.nn.Module):
    """Multiplies by a weight of [2, 2]."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


def config_text(inputs: Tensors, outputs: Tensors, *, batch: int = 0, more: str = "") -> str:
    """A configuration; tensors are (name, datatype, dims)."""
    tensors = [
        f'{kind} {{ name: "{name}" data_type: TYPE_{datatype} dims: {list(dims)} }}'
        for kind, specs in (("input", inputs), ("output", outputs))
        for name, datatype, dims in specs
    ]
    return f'backend: "pytorch" max_batch_size: {batch} {" ".join(tensors)} {more}'


def write_script(directory: Path, module: torch.nn.Module, config: str | None) -> Path:
    """Write a TorchScript model."""
    path = _place(directory, "model.pt", config)
    with warnings.catch_warnings():
        # It still is what Triton serves.
        warnings.filterwarnings("ignore", message=".*torch.jit.*", category=DeprecationWarning)
        torch.jit.save(torch.jit.script(module), path)
    return directory


def write_exported(
    directory: Path,
    module: torch.nn.Module,
    example: Sequence[Any],
    config: str | None = 'backend: "pytorch"',
    **options: Any,
) -> Path:
    """Write a program of torch.export."""
    torch.export.save(torch.export.export(module, tuple(example), **options), _place(directory, "model.pt2", config))
    return directory


def write_code(directory: Path, code: str, config: str, state: Mapping[str, Any] | None = None) -> Path:
    """Write a model.py, and its weights."""
    _place(directory, "model.py", config).write_text(code)
    if state is not None:
        torch.save(state, directory / "1" / "model.pt")
    return directory


def _place(directory: Path, filename: str, config: str | None) -> Path:
    path = directory / "1" / filename
    path.parent.mkdir(parents=True, exist_ok=True)
    if config is not None:
        (directory / "config.pbtxt").write_text(config)
    return path


async def complete(directory: Path, backend: PyTorchBackend | None = None, **settings: str) -> ModelConfig:
    """Read a model directory and complete its configuration, as a server does."""
    files = Repository([directory.parent]).read(directory.name)
    backend = backend or PyTorchBackend()
    document = await backend.complete(ModelSource(files.config, 1, directory, settings))
    return resolve(document, backend=backend).config


class Running:
    """An instance that is up."""

    def __init__(self, instance: Instance, config: ModelConfig) -> None:
        self.instance = instance
        self.config = config

    async def batch(self, *requests: Mapping[str, Any]) -> list[InferResponse | ConchError]:
        """Run requests as one batch; each is arrays, or tensors, by input. Return the result or error of each."""
        callers = [Caller(_request(inputs)) for inputs in requests]
        released = asyncio.Event()
        self.instance.execute(Batch(callers, lambda _: released.set()))
        answers = [await caller.finished() for caller in callers]
        await released.wait()
        return [answer for answer in answers if answer is not None]

    async def infer(self, **inputs: Any) -> dict[str, Any]:
        """Run one request; return its outputs by name. Raises the error that it is answered with."""
        (answer,) = await self.batch(inputs)
        if isinstance(answer, ConchError):
            raise answer
        return {tensor.name: tensor.to_numpy().tolist() for tensor in answer.outputs}


def _request(inputs: Mapping[str, Any]) -> InferRequest:
    tensors = [
        value if isinstance(value, Tensor) else Tensor.from_numpy(name, np.asarray(value))
        for name, value in inputs.items()
    ]
    request = InferRequest("m", tensors)
    request.batch_size = tensors[0].shape[0] if tensors[0].shape else 1
    return request


def fp32(*rows: object) -> Any:
    return np.array(rows, np.float32)


@asynccontextmanager
async def running(
    directory: Path,
    *,
    siblings: int = 1,
    kind: InstanceKind = InstanceKind.CPU,
    backend: PyTorchBackend | None = None,
    **settings: str,
) -> AsyncIterator[Running]:
    """Run one instance of the model in a directory."""
    own = backend is None
    backend = backend or PyTorchBackend()
    instance: Instance | None = None
    try:
        config = await complete(directory, backend)
        source = ModelSource(config, 1, directory, settings)
        instance = backend.instance(InstancePlan(source, f"{config.name}_0", kind, 0, siblings))
        await instance.start()
        yield Running(instance, config)
    finally:
        if instance is not None:
            await instance.stop()
        if own:
            await backend.stop()
