"""A core that does what a test tells it, behind the interface that the gRPC frontend sees."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

from conch.base.errors import Cancelled, ConchError, InvalidRequest, NotFound
from conch.domain.model_config import ModelConfig, TensorSpec
from conch.domain.request import InferRequest, InferResponse, Respond
from conch.domain.statistics.model_statistics import ModelStatistics
from conch.domain.tensor import Tensor
from conch.server.core.catalog import IndexEntry


class FakePending:
    """One admitted request; the test, or its model's behaviour, answers it."""

    def __init__(self, request: InferRequest, respond: Respond) -> None:
        self.request = request
        self._respond = respond
        self.done = False
        self.cancelled = asyncio.Event()

    def send(self, *outputs: Tensor, parameters: dict | None = None) -> None:
        if not self.done:
            self._respond(self._response(outputs, parameters), False)

    def answer(self, *outputs: Tensor, parameters: dict | None = None) -> None:
        self.finish(self._response(outputs, parameters))

    def finish(self, answer: InferResponse | ConchError | None) -> None:
        if not self.done:
            self.done = True
            self._respond(answer, True)

    def cancel(self) -> None:
        if not self.done:
            self.cancelled.set()
            self.finish(Cancelled("request was cancelled by the client"))

    def _response(self, outputs, parameters) -> InferResponse:
        return InferResponse(self.request.model_name, 1, list(outputs), id=self.request.id, parameters=parameters or {})


Behaviour = Callable[[FakePending], None]


def echo(pending: FakePending) -> None:
    """Answer with the inputs as outputs, at the loop's next turn."""
    tensors = [Tensor(f"OUT_{t.name}", t.datatype, t.shape, t.data) for t in pending.request.inputs]
    asyncio.get_running_loop().call_soon(lambda: pending.answer(*tensors))


def hold(pending: FakePending) -> None:
    """Leave the answer to the test."""


def config(name: str, **fields) -> ModelConfig:
    spec = TensorSpec("INPUT0", "FP32", (16,))
    document = {"name": name, "backend": "fake", "max_batch_size": 8, "parameters": {"k": {"string_value": "v"}}}
    document["version_policy"] = {"latest": {"num_versions": 1}}
    values = {"backend": "fake", "platform": "", "max_batch_size": 8, "inputs": (spec,), "outputs": (spec,)}
    return ModelConfig(name=name, document=document, **{**values, **fields})


def _refuse_by(error: ConchError | None) -> None:
    if error is not None:
        raise error


@dataclass
class FakeInference:
    """Models by name, each one version (1) and one behaviour; remembers what was admitted."""

    limiter = None
    behaviours: dict[str, Behaviour] = field(default_factory=dict)
    models: dict[str, SimpleNamespace] = field(default_factory=dict)
    admitted: list[FakePending] = field(default_factory=list)
    is_ready: bool = True

    def __post_init__(self) -> None:
        self._arrived = asyncio.Event()

    def add(self, name: str, behaviour: Behaviour, labels: dict | None = None, **fields) -> None:
        self.behaviours[name] = behaviour
        model = SimpleNamespace(config=config(name, **fields), version=1, labels=labels or {}, full=None)
        model.check_room = lambda _timeline: _refuse_by(model.full)
        self.models[name] = model

    async def wait_for(self, count: int) -> list[FakePending]:
        """Return the admitted requests once there are that many."""
        async with asyncio.timeout(60):
            while len(self.admitted) < count:
                self._arrived.clear()
                await self._arrived.wait()
        return self.admitted

    # ---- the interface

    def infer(self, _model: SimpleNamespace, request: InferRequest, respond: Respond) -> FakePending:
        if not request.inputs:
            raise InvalidRequest(f"[request id: {request.id}] expected 1 inputs but got 0 inputs")
        pending = FakePending(request, respond)
        self.admitted.append(pending)
        self._arrived.set()
        self.behaviours[request.model_name](pending)
        return pending

    def model(self, name: str, version: int | None):
        if name not in self.models:
            raise NotFound(f"Request for unknown model: '{name}' is not found")
        if version not in (None, 1):
            raise NotFound(f"Request for unknown model: '{name}' version {version} is not found")
        return self.models[name]

    def live(self) -> bool:
        return True

    def ready(self) -> bool:
        return self.is_ready

    async def model_ready(self, name: str, version: int | None) -> bool:
        return name in self.models and version in (None, 1)

    def versions(self, name: str) -> list[int]:
        return [self.model(name, None).version]

    def statistics(self, name: str = "", version: int | None = None) -> list[ModelStatistics]:
        if name and name not in self.models:
            raise InvalidRequest(f"requested model '{name}' is not available")
        return [ModelStatistics(model, 1) for model in self.models if name in ("", model)]


@dataclass
class FakeControl:
    """Remembers what it was asked for; `error` makes the next load fail."""

    loads: list[tuple] = field(default_factory=list)
    unloads: list[tuple] = field(default_factory=list)
    error: ConchError | None = None

    def index(self, ready_only: bool) -> list[IndexEntry]:
        entries = [IndexEntry("echo", "1", "READY"), IndexEntry("broken", "1", "UNAVAILABLE", "no such file")]
        return entries[:1] if ready_only else [*entries, IndexEntry("never_loaded")]

    async def load(self, name: str, config: str | None, files: dict[str, bytes]) -> None:
        if self.error:
            raise self.error
        self.loads.append((name, config, files))

    async def unload(self, name: str, unload_dependents: bool) -> None:
        self.unloads.append((name, unload_dependents))
