"""The core's catalog in a frontend process: what the core publishes, and the models made of it."""

from collections.abc import Iterable, Sequence
from typing import Any

from conch.base.errors import ConchError
from conch.domain.generation import DeltaCallback, EngineInfo, EngineLoad, Generation, GenerationRequest
from conch.domain.model_config import ModelConfig
from conch.domain.request import InferRequest, Respond, Timeline
from conch.server.backends.engines.base import Engine
from conch.server.core.catalog import Catalog
from conch.server.core.generative_model import GenerativeModel
from conch.server.core.inference import Inference
from conch.server.core.served_model import ServedModel
from conch.server.frontends.processes.link import REFUSED, FrontendLink, times_of
from conch.server.frontends.processes.remote_models import (
    Calls,
    ForwardedContext,
    RemoteGenerativeModel,
    RemoteModel,
)
from conch.server.frontends.processes.values import describe_error, of_plain, to_plain
from conch.server.observability.tracing.observer import Observer
from conch.server.observability.tracing.request_trace import ModelSpan, Trace
from conch.server.repository.namespaces import ModelId

# Namespace and name of a model, and its versions as `_described` makes them; none for a model that is not served.
Entry = tuple[str, str, Sequence[Any]]


class Publisher:
    """Finds what has changed in the core's catalog since it was asked last."""

    def __init__(self, inference: Inference) -> None:
        self._inference = inference
        self._known: dict[ModelId, list[tuple[ServedModel, EngineInfo | None]]] = {}
        self.entries: dict[ModelId, Entry] = {}  # all, for a process that starts

    def changes(self) -> list[Entry]:
        """Return the models whose versions, configurations or engines have changed."""
        current: dict[ModelId, list[tuple[ServedModel, EngineInfo | None]]] = {}
        for served in self._inference.models():
            info = served.engine.info if isinstance(served, GenerativeModel) else None
            current.setdefault(served.id, []).append((served, info))
        changed: list[Entry] = []
        for model, versions in current.items():
            if self._known.get(model) != versions:
                entry = (model.namespace, model.name, [_described(*version) for version in versions])
                self.entries[model] = entry
                changed.append(entry)
        for model in self._known.keys() - current.keys():
            self.entries.pop(model, None)
            changed.append((model.namespace, model.name, ()))
        self._known = current
        return changed


class CatalogMirror:
    """Applies what the core publishes to a frontend's catalog."""

    def __init__(self, catalog: Catalog, calls: Calls) -> None:
        self._catalog = catalog
        self._calls = calls

    def apply(self, entries: Iterable[Entry]) -> None:
        """Replace the versions of models."""
        for namespace, name, versions in entries:
            model = ModelId(namespace, name)
            self._catalog.publish(model, {served.version: served for served in map(self._served, versions)})
            if not versions:
                self._catalog.forget(model)

    def _served(self, described: Sequence[Any]) -> ServedModel:
        version, config_, labels, info_ = described
        config: ModelConfig = of_plain(config_)
        info: EngineInfo | None = of_plain(info_)
        if info is None:
            return RemoteModel(config, version, labels, self._calls)
        return RemoteGenerativeModel(config, version, labels, RemoteEngine(info, self._calls), self._calls)


class RemoteEngine(Engine):
    """An engine of the core. It has no load here: the core counts, and refuses what it has no room for."""

    def __init__(self, info: EngineInfo, calls: Calls) -> None:
        self.info = info
        self.load = EngineLoad()
        self._calls = calls

    @property
    def ready(self) -> bool:
        return True

    async def start(self) -> None:
        """Do nothing: the core has started it."""

    async def stop(self) -> None:
        """Do nothing: the core stops it."""

    def generate(self, request: GenerationRequest, on_deltas: DeltaCallback) -> Generation:
        return self._calls.generate(request, on_deltas)


def _described(served: ServedModel, info: EngineInfo | None) -> tuple[Any, ...]:
    labels = {name: list(lines) for name, lines in served.labels.items()}
    return (served.version, to_plain(served.config), labels, to_plain(info))


class RemoteObserver(Observer):
    """Notes the trace context of requests for the core. `on` is the core's."""

    def __init__(self, link: FrontendLink) -> None:
        super().__init__()
        self._link = link

    def begin(
        self, protocol: str, model: str, timeline: Timeline, traceparent: str = "", tracestate: str = ""
    ) -> Trace:
        return RemoteTrace(self._link, model, timeline, ForwardedContext(protocol, traceparent, tracestate))

    def unread(self, protocol: str, path: str, status: str, error: str) -> None:
        if self.on:
            self._link.send((REFUSED, None, protocol, path, status, error))


class RemoteTrace(Trace):
    """The trace of a request that the core records."""

    def __init__(self, link: FrontendLink, model: str, timeline: Timeline, context: ForwardedContext) -> None:
        self._link = link
        self._model = model
        self._timeline = timeline
        self._context = context

    def read(self, request: InferRequest, version: int) -> None:  # noqa: ARG002 - the core knows it
        request.span = self._context

    def began(self, version: int) -> ModelSpan:  # noqa: ARG002 - the core knows it
        return self._context  # type: ignore[return-value]  # a `Span`, as its callers need

    def relay(self, respond: Respond) -> Respond:
        return respond

    def answered(self, error: ConchError | None) -> None:
        """Do nothing: the core has recorded the end."""

    def refused(self, error: ConchError) -> None:
        context = (self._context.protocol, self._context.parent, self._context.state)
        self._link.send((REFUSED, context, self._model, times_of(self._timeline), describe_error(error)))
