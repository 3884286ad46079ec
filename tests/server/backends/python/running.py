"""Models in a temporary repository, run by the backend itself: no server, no scheduler."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

from conch.base.errors import ConchError
from conch.domain.model_config import InstanceKind, ModelConfig, TensorSpec
from conch.domain.request import InferRequest, InferResponse
from conch.domain.tensor import Tensor
from conch.server.backends.base import InstancePlan, ModelSource
from conch.server.backends.batch import Batch
from conch.server.backends.python.backend import PythonBackend
from conch.server.backends.python.instance import PythonInstance
from conch.server.backends.python.model_process import ModelProcess
from conch.server.backends.python.tensor_exchange import TensorExchange

TIMEOUT_S = 60

IDENTITY = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [
                pb_utils.InferenceResponse(
                    [pb_utils.Tensor("OUT" + t.name()[2:], t.as_numpy()) for t in request.inputs()]
                )
                for request in requests
            ]
"""


class Caller:
    """One request's `Execution`: collects what the instance answers."""

    def __init__(self, request: InferRequest) -> None:
        self.request = request
        self.responses: list[InferResponse] = []
        self.errors: list[ConchError] = []  # that came before the end
        self.last: InferResponse | ConchError | None = None
        self.cancelled = False
        self.news = asyncio.Event()
        self._finished = asyncio.Event()
        self._notify: Any = None

    def on_cancel(self, notify: Any) -> None:
        self._notify = notify

    def send(self, response: InferResponse | ConchError) -> None:
        assert not self._finished.is_set()
        if isinstance(response, ConchError):
            self.errors.append(response)
        else:
            self.responses.append(response)
        self.news.set()

    def finish(self, answer: InferResponse | ConchError | None) -> None:
        assert not self._finished.is_set()
        self.last = answer
        self._finished.set()

    def cancel(self) -> None:
        self.cancelled = True
        self._notify()

    async def finished(self) -> InferResponse | ConchError | None:
        await asyncio.wait_for(self._finished.wait(), TIMEOUT_S)
        return self.last

    async def response(self) -> InferResponse:
        answer = await self.finished()
        if isinstance(answer, ConchError):
            raise answer
        assert answer is not None
        return answer

    async def error(self) -> ConchError:
        answer = await self.finished()
        assert isinstance(answer, ConchError), answer
        return answer


class Runner:
    """One started instance."""

    def __init__(self, backend: PythonBackend, instance: PythonInstance) -> None:
        self.backend = backend
        self.instance = instance
        self.released = asyncio.Event()
        self.ready_changes: asyncio.Queue[bool] = asyncio.Queue()
        instance.on_ready_change = lambda: self.ready_changes.put_nowait(instance.ready)

    def batch(self, *requests: InferRequest) -> list[Caller]:
        """Execute requests together."""
        self.released = asyncio.Event()
        callers = [Caller(request) for request in requests]
        self.last_batch = Batch(callers, lambda _: self.released.set())
        self.instance.execute(self.last_batch)
        return callers

    def submit(self, *tensors: Tensor, **options: Any) -> Caller:
        return self.batch(InferRequest("model", list(tensors), **options))[0]

    async def infer(self, *tensors: Tensor, **options: Any) -> InferResponse:
        caller = self.submit(*tensors, **options)
        response = await caller.response()
        await asyncio.wait_for(self.released.wait(), TIMEOUT_S)
        return response

    async def error(self, *tensors: Tensor, **options: Any) -> ConchError:
        caller = self.submit(*tensors, **options)
        error = await caller.error()
        await asyncio.wait_for(self.released.wait(), TIMEOUT_S)
        return error

    async def next_response(self, caller: Caller) -> InferResponse:
        """Wait for a decoupled model's next response that is not the last."""
        while not caller.responses:
            caller.news.clear()
            await asyncio.wait_for(caller.news.wait(), TIMEOUT_S)
        return caller.responses.pop(0)

    async def ready_change(self) -> bool:
        return await asyncio.wait_for(self.ready_changes.get(), TIMEOUT_S)

    def release_batch(self) -> None:
        """Release the last batch with its requests and responses."""
        del self.last_batch

    @property
    def process(self) -> ModelProcess:
        """The process that is in service."""
        assert self.instance._processes.current is not None
        return self.instance._processes.current

    @property
    def pid(self) -> int:
        return self.process._child.pid

    @property
    def tensors(self) -> TensorExchange:
        return self.process.requests._tensors


def write_model(directory: Path, code: str, version: int = 1, filename: str = "model.py") -> Path:
    """Write a model's code into its version directory."""
    path = directory / str(version) / filename
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dedent(code))
    return path


def source(
    directory: Path,
    *,
    outputs: Sequence[str] = (),
    parameters: Mapping[str, str] | None = None,
    decoupled: bool = False,
    version: int = 1,
    filename: str = "",
    document: Mapping[str, Any] | None = None,
    settings: Mapping[str, str] | None = None,
) -> ModelSource:
    """Describe a model as the repository would."""
    config = ModelConfig(
        name="model",
        backend="python",
        platform="",
        max_batch_size=0,
        inputs=(),
        outputs=tuple(TensorSpec(name, "FP32", (-1,)) for name in outputs),
        decoupled=decoupled,
        default_model_filename=filename,
        parameters=parameters or {},
        document=document or {"name": "model", "max_batch_size": 0, "input": [], "output": []},
    )
    return ModelSource(config, version, directory, settings or {})


def plan(model: ModelSource, name: str = "model_0_0") -> InstancePlan:
    return InstancePlan(model, name, InstanceKind.CPU, 0, 1)


@asynccontextmanager
async def running(directory: Path, code: str, **options: Any) -> AsyncIterator[Runner]:
    """Run one instance of a model with this code; `options` are those of `source`."""
    write_model(directory, code, options.get("version", 1), options.get("filename") or "model.py")
    backend = PythonBackend()
    await backend.start()
    instance = backend.instance(plan(source(directory, **options)))
    assert isinstance(instance, PythonInstance)
    runner = Runner(backend, instance)
    try:
        await instance.start()
        yield runner
    finally:
        await instance.stop()
        await backend.stop()
