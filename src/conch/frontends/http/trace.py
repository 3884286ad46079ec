"""Begins the trace of an HTTP request, whose W3C trace context is in two headers."""

from conch.frontends.http.message import HttpRequest
from conch.observability.tracing.observer import Observer
from conch.observability.tracing.request_trace import Trace
from conch.request import Timeline


def begin_trace(observer: Observer, request: HttpRequest, model: str, timeline: Timeline) -> Trace | None:
    """Begin the trace of a request; None if it is not sampled."""
    parent, state = request.headers.get(b"traceparent", b""), request.headers.get(b"tracestate", b"")
    return observer.begin("HTTP", model, timeline, parent.decode("latin-1"), state.decode("latin-1"))
