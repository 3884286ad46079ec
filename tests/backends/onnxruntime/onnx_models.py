"""Small ONNX models, and an instance driven without a server around it."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

from conch.backends.base import Instance, InstancePlan, ModelSource
from conch.backends.batch import Batch
from conch.backends.onnxruntime import OnnxRuntimeBackend
from conch.errors import ConchError
from conch.model_config import InstanceKind, ModelConfig
from conch.repository.finish import finish
from conch.repository.store import Repository
from conch.request import InferRequest, InferResponse
from conch.tensor import Tensor

Dims = Sequence[int | str | None]

FP32 = TensorProto.FLOAT


def write_model(
    directory: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, Dims]],
    outputs: Mapping[str, tuple[int, Dims]],
    *,
    initializers: Sequence[onnx.TensorProto] = (),
    filename: str = "1/model.onnx",
    config: str | None = None,
) -> Path:
    """Write a model directory; inputs and outputs are name → (element type, dimensions)."""
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, *kind) for name, kind in inputs.items()],
        [helper.make_tensor_value_info(name, *kind) for name, kind in outputs.items()],
        initializer=list(initializers),
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path = directory / filename
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    if config is not None:
        (directory / "config.pbtxt").write_text(config)
    return directory


def write_identity(directory: Path, element: int, dims: Dims, *, config: str | None = None) -> Path:
    """Write a model with one input IN and one output OUT, equal."""
    node = helper.make_node("Identity", ["IN"], ["OUT"])
    return write_model(directory, [node], {"IN": (element, dims)}, {"OUT": (element, dims)}, config=config)


async def complete(directory: Path, settings: Mapping[str, str] | None = None) -> ModelConfig:
    """Read a model directory and complete its configuration, as a server does."""
    files = Repository([directory.parent]).read(directory.name)
    backend = OnnxRuntimeBackend()
    version = files.versions_on_disk[0] if files.versions_on_disk else 1
    document = await backend.complete(ModelSource(files.config, version, directory, settings or {}))
    return finish(document, backend=backend).config


def plan(directory: Path, config: ModelConfig, *, siblings: int = 1, **settings: str) -> InstancePlan:
    """The plan of a CPU instance of version 1."""
    source = ModelSource(config, 1, directory, settings)
    return InstancePlan(source, f"{config.name}_0", InstanceKind.CPU, 0, siblings)


async def started(directory: Path, *, siblings: int = 1, **settings: str) -> Instance:
    """An instance that is up; the caller stops it."""
    config = await complete(directory)
    instance = OnnxRuntimeBackend().instance(plan(directory, config, siblings=siblings, **settings))
    await instance.start()
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
    """Run requests as one batch and return what becomes of each."""
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
