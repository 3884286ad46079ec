"""Begins the trace of an HTTP request, whose W3C trace context is in two headers."""

from conch.base.errors import ConchError
from conch.domain.request import Timeline
from conch.protocols.http.message import HttpRefusal, HttpRequest
from conch.server.observability.tracing.observer import Observer
from conch.server.observability.tracing.request_trace import Trace


def begin_trace(observer: Observer, request: HttpRequest, model: str, timeline: Timeline) -> Trace | None:
    """Begin the trace of a request; None if it is not sampled."""
    parent, state = request.headers.get(b"traceparent", b""), request.headers.get(b"tracestate", b"")
    return observer.begin("HTTP", model, timeline, parent.decode("latin-1"), state.decode("latin-1"))


def log_unread(observer: Observer, request: HttpRequest, refusal: ConchError | HttpRefusal) -> None:
    """Log an inference request that is refused before its model is known."""
    if isinstance(refusal, ConchError):
        observer.unread("HTTP", request.path, refusal.code.name, refusal.message)
    else:
        observer.unread("HTTP", request.path, _STATUS.get(refusal.status, str(refusal.status)), refusal.message)


# As gRPC names them.
_STATUS = {401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED"}
