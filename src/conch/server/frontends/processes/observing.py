"""Traces of requests of a frontend process: the core records them, by what is noted here."""

from conch.base.errors import ConchError
from conch.domain.request import InferRequest, Respond, Timeline
from conch.server.frontends.processes.link import REFUSED, FrontendLink
from conch.server.frontends.processes.remote_models import ForwardedContext, times_of
from conch.server.frontends.processes.values import describe_error
from conch.server.observability.tracing.observer import Observer
from conch.server.observability.tracing.request_trace import ModelSpan, Trace


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
