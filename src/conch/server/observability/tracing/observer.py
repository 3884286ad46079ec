"""Pass complete traces to trace files, an OpenTelemetry collector and the request log, in a separate thread.

The event loop only appends complete traces to a list; the thread writes the lists. The queue is bounded: traces that a
disk or a collector is too slow for are dropped, with one warning until they are accepted again.
"""

import asyncio
import logging
from collections.abc import Sequence
from importlib import import_module
from itertools import count
from queue import SimpleQueue
from threading import Thread
from typing import Protocol

from conch.base.errors import ConchError, ConfigError
from conch.base.extras import install_command
from conch.domain.request import Timeline
from conch.protocols.http.message import HttpRefusal, HttpRequest
from conch.server.observability.tracing.request_log import RequestLog
from conch.server.observability.tracing.request_trace import Trace, read_context
from conch.server.observability.tracing.trace_file import TraceFile
from conch.server.observability.tracing.trace_settings import Changes, TraceSettings
from conch.server.options.server_options import ServerOptions
from conch.server.options.trace import OPENTELEMETRY, TraceOptions

_log = logging.getLogger(__name__)

# A batch of traces is passed to the thread at one of these bounds, in the order: traces, bytes of tensors, age.
_MAX_BATCH_TRACES = 512
_MAX_BATCH_BYTES = 16 * 2**20
_MAX_BATCH_AGE_S = 0.1
# Of the thread's queue.
MAX_QUEUED_TRACES = 16_384
MAX_QUEUED_BYTES = 256 * 2**20
_STOP_TIMEOUT_S = 10.0
# Statuses of refusals as gRPC names them.
_HTTP_STATUS = {401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED"}


class TraceSink(Protocol):
    """A destination of complete traces. One thread calls all methods."""

    def write(self, traces: Sequence[Trace]) -> None:
        """Write traces. Raises OSError on failure."""

    def close(self) -> None:
        """Write the remaining traces and release all resources."""


class Observer:
    """Creates the traces of requests and passes them to the sinks. Life cycle: `begin` for each request → `close`.

    All methods run on the event loop's thread.
    """

    def __init__(self, traces: TraceOptions | None = None, log_requests: str = "off", *, verbose: bool = False) -> None:
        """Create the sinks. `verbose` logs also the requests that `log_requests` excludes, at verbosity 1.

        Raises ConfigError if OpenTelemetry is enabled and its packages are missing.
        """
        options = traces or TraceOptions()
        self.settings = TraceSettings(options)
        self._mode_settings: dict[str, str] = {}
        self._sinks: list[TraceSink] = []
        self._distributed = options.mode == OPENTELEMETRY
        if self._distributed:
            spans = _span_sink(options)
            self._mode_settings = spans.settings
            self._sinks.append(spans)
        elif options.file:
            self._sinks.append(TraceFile(options.file))
        self._log_requests = log_requests
        self._verbose = verbose
        self._request_log: RequestLog | None = None
        self.on = False  # whether to call `begin`
        self._number = count(1).__next__
        self._batch: list[Trace] = []
        self._batch_bytes = 0
        self._batches: SimpleQueue[list[Trace] | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._queued = self._queued_bytes = 0  # total, in the queue
        self._written = self._written_bytes = 0  # total, set by the thread only
        self._dropping = False
        self._failing: set[TraceSink] = set()
        self._refresh()

    @property
    def problem(self) -> str:
        """Why traces are being dropped, "" if none are."""
        if self._dropping:
            return "the queue of traces is full"
        return f"traces cannot be written to {next(iter(self._failing))!r}" if self._failing else ""

    @classmethod
    def of(cls, options: ServerOptions) -> "Observer":
        """Create the observer for a server's options. Raises ConfigError."""
        return cls(TraceOptions.of(options.trace_config), options.log_requests, verbose=options.log_verbose > 0)

    def begin(
        self, protocol: str, model: str, timeline: Timeline, traceparent: str = "", tracestate: str = ""
    ) -> Trace | None:
        """Begin the trace of a received request; None if it is neither traced nor logged.

        In OpenTelemetry mode the sampling of the caller's trace has precedence over rate and count.
        """
        remote = read_context(traceparent, tracestate) if traceparent else None
        rules = self.settings.rules(model)
        sampled = False
        if not self._distributed:
            sampled = rules.sample()
        elif remote is None or remote.sampled:
            sampled = rules.sample(forced=remote is not None)
        if rules.exhausted:
            self._refresh()
        if not sampled and self._request_log is None:
            return None
        return Trace(
            protocol,
            model,
            timeline,
            self._number,
            self._completed,
            rules=rules if sampled else None,
            remote=remote,
            distributed=sampled and self._distributed,
        )

    def begin_http(self, request: HttpRequest, model: str, timeline: Timeline) -> Trace | None:
        """Begin the trace of an HTTP request, whose W3C trace context is in two headers; None if it is not sampled."""
        parent, state = request.headers.get(b"traceparent", b""), request.headers.get(b"tracestate", b"")
        return self.begin("HTTP", model, timeline, parent.decode("latin-1"), state.decode("latin-1"))

    def unread_http(self, request: HttpRequest, refusal: ConchError | HttpRefusal) -> None:
        """Log an HTTP request that is refused before its model is known."""
        if isinstance(refusal, ConchError):
            status = refusal.code.name
        else:
            status = _HTTP_STATUS.get(refusal.status, str(refusal.status))
        self.unread("HTTP", request.path, status, refusal.message)

    def unread(self, protocol: str, path: str, status: str, error: str) -> None:
        """Log a request that is refused before its model is known: without a key, or with an invalid body."""
        if self._request_log is not None:
            self._request_log.unread(protocol, path, status, error)

    def document(self, model: str) -> dict[str, str | list[str]]:
        """Return the trace settings of a model, or the global ones for ""."""
        return self.settings.document(model, self._mode_settings)

    def update(self, model: str, changes: Changes) -> None:
        """Change trace settings. Raises InvalidRequest, Unsupported."""
        self.settings.update(model, changes)
        self._refresh()

    def follow_verbosity(self, level: int) -> None:
        """Enable or disable the request log after a change of the log's verbosity."""
        self._verbose = level > 0
        self._refresh()

    async def close(self) -> None:
        """Write the remaining traces and stop."""
        self.on = False
        self._enqueue()
        if self._thread is not None:
            self._batches.put(None)
            await asyncio.to_thread(self._thread.join, _STOP_TIMEOUT_S)
        else:
            for sink in self._sinks:
                sink.close()

    def _refresh(self) -> None:
        logged = self._verbose or self._log_requests != "off"
        if logged and self._request_log is None:
            self._request_log = RequestLog(self._log_requests)
            self._sinks.append(self._request_log)
        elif not logged and self._request_log is not None:
            self._sinks.remove(self._request_log)
            self._request_log = None
        self.on = logged or self.settings.on

    def _completed(self, trace: Trace) -> None:
        errors_only = self._log_requests == "errors" and not self._verbose
        if errors_only and trace.rules is None and trace.error is None:
            return
        self._batch.append(trace)
        self._batch_bytes += trace.copied
        if len(self._batch) >= _MAX_BATCH_TRACES or self._batch_bytes >= _MAX_BATCH_BYTES:
            self._enqueue()
        elif len(self._batch) == 1:
            asyncio.get_running_loop().call_later(_MAX_BATCH_AGE_S, self._enqueue)

    def _enqueue(self) -> None:
        traces, self._batch = self._batch, []
        copied, self._batch_bytes = self._batch_bytes, 0
        if not traces:
            return
        is_full = self._queued - self._written > MAX_QUEUED_TRACES
        if is_full or self._queued_bytes - self._written_bytes > MAX_QUEUED_BYTES:
            if not self._dropping:
                _log.warning("the queue of traces is full; dropping traces until they are written")
            self._dropping = True
            return
        self._dropping = False
        self._queued += len(traces)
        self._queued_bytes += copied
        if self._thread is None:
            self._thread = Thread(target=self._write_all, name="conch-observer", daemon=True)
            self._thread.start()
        self._batches.put(traces)

    # ---- the thread

    def _write_all(self) -> None:
        while (traces := self._batches.get()) is not None:
            for sink in tuple(self._sinks):
                self._write(sink, traces)
            self._written += len(traces)
            self._written_bytes += sum(trace.copied for trace in traces)
            del traces
        for sink in self._sinks:
            sink.close()

    def _write(self, sink: TraceSink, traces: list[Trace]) -> None:
        try:
            sink.write(traces)
        except OSError as error:
            if sink not in self._failing:
                _log.warning("cannot write to %r: %s; dropping traces", sink, error)
            self._failing.add(sink)
        except Exception:
            _log.exception("cannot write %d traces to %r", len(traces), sink)
        else:
            self._failing.discard(sink)


class SpanSinkLike(TraceSink, Protocol):
    """A sink with settings for the trace settings endpoint."""

    settings: dict[str, str]


def _span_sink(options: TraceOptions) -> SpanSinkLike:
    try:
        module = import_module("conch.server.observability.tracing.opentelemetry")
    except ImportError as error:
        raise ConfigError(
            "--trace-config=mode=opentelemetry needs the packages of OpenTelemetry: "
            f"{install_command('opentelemetry')} ({error})"
        ) from error
    sink: SpanSinkLike = module.SpanSink(options)
    return sink
