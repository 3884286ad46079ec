"""A core without models: echoes requests, immediately or when a test releases them, and records calls."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from conch.base.errors import ConchError, InvalidRequest, NotFound
from conch.domain.model_config import ModelConfig, TensorSpec
from conch.domain.request import InferRequest, InferResponse, Respond, Timeline
from conch.domain.statistics.model_statistics import ModelStatistics
from conch.domain.tensor import Tensor
from conch.server.core.catalog import IndexEntry

LABELS = ("zero", "one", "two")


@dataclass
class ScriptedModel:
    config: ModelConfig
    version: int = 1
    labels: Mapping[str, Sequence[str]] = field(default_factory=lambda: {"OUTPUT0": LABELS})
    full: ConchError | None = None  # the refusal for lack of room

    def check_room(self, _timeline: Timeline) -> None:
        if self.full is not None:
            raise self.full


class Admitted:
    def __init__(self, request: InferRequest, respond: Respond) -> None:
        self.request = request
        self.respond = respond
        self.cancelled = threading.Event()

    def cancel(self) -> None:
        self.cancelled.set()

    def answer(self, outputs: list[Tensor] | ConchError | None = None) -> None:
        if isinstance(outputs, ConchError):
            self.respond(outputs, True)
            return
        request = self.request
        if outputs is None:
            outputs = [
                Tensor(tensor.name.replace("INPUT", "OUTPUT"), tensor.datatype, tensor.shape, tensor.data)
                for tensor in request.inputs
            ]
        self.respond(
            InferResponse(request.model_name, request.version or 1, outputs, id=request.id, parameters={}), True
        )


def model(
    name: str,
    datatype: str = "FP32",
    dims: tuple[int, ...] = (16,),
    *,
    inputs: int = 1,
    max_batch_size: int = 8,
    decoupled: bool = False,
) -> ScriptedModel:
    """Describe a model with INPUT0… and OUTPUT0…, all of one datatype and shape."""
    return ScriptedModel(
        ModelConfig(
            name=name,
            backend="scripted",
            platform="",
            max_batch_size=max_batch_size,
            inputs=tuple(TensorSpec(f"INPUT{index}", datatype, dims) for index in range(inputs)),
            outputs=tuple(TensorSpec(f"OUTPUT{index}", datatype, dims) for index in range(inputs)),
            decoupled=decoupled,
            document={"name": name, "max_batch_size": max_batch_size, "instance_group": []},
        )
    )


class ScriptedInference:
    """Stands in for `core.inference.Inference`."""

    limiter = None

    def __init__(self, *models: ScriptedModel) -> None:
        self.models = {model.config.name: model for model in models}
        self.admitted: list[Admitted] = []
        self.looked_up: list[str] = []  # names of models
        self.admission = threading.Semaphore(0)  # released with each of them
        self.outputs: list[Tensor] | ConchError | None = None  # what to answer instead of an echo
        self.hold = False  # leave requests unanswered
        self.is_ready = True

    def infer(self, _model: ScriptedModel, request: InferRequest, respond: Respond) -> Admitted:
        admitted = Admitted(request, respond)
        self.admitted.append(admitted)
        self.admission.release()
        if not self.hold:
            admitted.answer(self.outputs)
        return admitted

    def unserved(self, name: str) -> str:
        return ""

    def model(self, name: str, version: int | None) -> ScriptedModel:
        self.looked_up.append(name)
        if name not in self.models:
            raise NotFound(f"Request for unknown model: '{name}' is not found")
        if version not in (None, 1):
            raise NotFound(f"Request for unknown model: '{name}' version {version} is not found")
        return self.models[name]

    def versions(self, name: str) -> list[int]:
        self.model(name, None)
        return [1]

    def live(self) -> bool:
        return True

    def ready(self) -> bool:
        return self.is_ready

    async def model_ready(self, name: str, version: int | None) -> bool:
        return name in self.models and version in (None, 1)

    def statistics(self, name: str = "", version: int | None = None) -> list[ModelStatistics]:
        if name and name not in self.models:
            raise InvalidRequest(f"requested model '{name}' is not available")
        return [ModelStatistics(key, 1) for key in self.models if name in ("", key)]


class ScriptedControl:
    """Stands in for `core.lifecycle.ModelManager`."""

    def __init__(self) -> None:
        self.loaded: list[tuple[str, str | None, Mapping[str, bytes]]] = []
        self.unloaded: list[tuple[str, bool]] = []
        self.failure: Exception | None = None

    def index(self, ready_only: bool) -> list[IndexEntry]:
        entries = [IndexEntry("identity", "1", "READY"), IndexEntry("never")]
        return entries[:1] if ready_only else entries

    async def load(self, name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        if self.failure is not None:
            raise self.failure
        self.loaded.append((name, config, files))

    async def unload(self, name: str, unload_dependents: bool) -> None:
        self.unloaded.append((name, unload_dependents))
