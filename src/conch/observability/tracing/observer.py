"""Who wants to know of requests: trace files, a collector of spans, the log of requests. And who is told, off the loop.

On the event loop a complete trace is put on a list; a thread writes the lists down. What waits is bounded: what a disk
or a collector cannot take is dropped, and the log says so, once until it is taken again.
"""

import asyncio
import logging
from collections.abc import Sequence
from importlib import import_module
from itertools import count
from queue import SimpleQueue
from threading import Thread
from typing import Protocol

from conch.errors import ConfigError
from conch.observability.tracing.request_log import RequestLog
from conch.observability.tracing.request_trace import Trace, read_context
from conch.observability.tracing.trace_file import TraceFile
from conch.observability.tracing.trace_settings import Changes, TraceSettings
from conch.options.server_options import ServerOptions
from conch.options.trace import OPENTELEMETRY, TraceOptions
from conch.request import Timeline

_log = logging.getLogger(__name__)

# Traces are written down together: so many, or what came in so many seconds.
_TOGETHER = 512
_DELAY_S = 0.1
# How many traces, and how many bytes of tensors in them, may wait.
_MOST_WAITING = 16_384
_MOST_BYTES = 256 * 2**20
_BYTES_TOGETHER = 16 * 2**20
_STOP_LIMIT_S = 10.0


class TraceSink(Protocol):
    """Where complete traces go. All methods are called by one thread."""

    def write(self, traces: Sequence[Trace]) -> None:
        """Write them down. Raises OSError if that cannot be done now."""

    def close(self) -> None:
        """Write down what is left and let go of everything."""


class Observer:
    """Life: `begin` for each request → `close`. But for the thread of its own it belongs to the event loop's thread."""

    def __init__(self, traces: TraceOptions | None = None, log_requests: str = "off", *, verbose: bool = False) -> None:
        """Assign. `verbose` logs every request at verbosity 1, whatever `log_requests` leaves out.

        Raises ConfigError if spans are wanted and the package that sends them is missing.
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
        self.on = False  # whether `begin` is to be called
        self._number = count(1).__next__
        self._complete: list[Trace] = []
        self._complete_bytes = 0
        self._batches: SimpleQueue[list[Trace] | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._handed = self._handed_bytes = 0  # to the thread
        self._written = self._written_bytes = 0  # by the thread, which alone sets them
        self._dropping = False
        self._failing: set[TraceSink] = set()
        self._refresh()

    @classmethod
    def of(cls, options: ServerOptions) -> "Observer":
        """Make the one that a server is told to have. Raises ConfigError."""
        return cls(TraceOptions.of(options.trace_config), options.log_requests, verbose=options.log_verbose > 0)

    def begin(
        self, protocol: str, model: str, timeline: Timeline, traceparent: str = "", tracestate: str = ""
    ) -> Trace | None:
        """Begin the trace of a request that has come; None if nobody wants to know of this one.

        A caller whose trace is sampled has this request traced whatever rate and count are, in OpenTelemetry mode; one
        whose trace is not has it left out.
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

    def document(self, model: str) -> dict[str, str | list[str]]:
        """Return the trace settings of a model, or of all with ""."""
        return self.settings.document(model, self._mode_settings)

    def update(self, model: str, changes: Changes) -> None:
        """Change trace settings. Raises InvalidRequest, Unsupported."""
        self.settings.update(model, changes)
        self._refresh()

    def follow_verbosity(self, level: int) -> None:
        """Log requests or stop logging them after a change of the log's verbosity."""
        self._verbose = level > 0
        self._refresh()

    async def close(self) -> None:
        """Write down what has been noted. Afterwards nothing is noted any more."""
        self.on = False
        self._hand_over()
        if self._thread is not None:
            self._batches.put(None)
            await asyncio.to_thread(self._thread.join, _STOP_LIMIT_S)
        else:
            for sink in self._sinks:
                sink.close()

    def _refresh(self) -> None:
        wanted = self._verbose or self._log_requests != "off"
        if wanted and self._request_log is None:
            self._request_log = RequestLog(self._log_requests)
            self._sinks.append(self._request_log)
        elif not wanted and self._request_log is not None:
            self._sinks.remove(self._request_log)
            self._request_log = None
        self.on = wanted or self.settings.on

    def _completed(self, trace: Trace) -> None:
        errors_only = self._log_requests == "errors" and not self._verbose
        if errors_only and trace.rules is None and trace.error is None:
            return
        self._complete.append(trace)
        self._complete_bytes += trace.copied
        if len(self._complete) >= _TOGETHER or self._complete_bytes >= _BYTES_TOGETHER:
            self._hand_over()
        elif len(self._complete) == 1:
            asyncio.get_running_loop().call_later(_DELAY_S, self._hand_over)

    def _hand_over(self) -> None:
        traces, self._complete = self._complete, []
        copied, self._complete_bytes = self._complete_bytes, 0
        if not traces:
            return
        if self._handed - self._written > _MOST_WAITING or self._handed_bytes - self._written_bytes > _MOST_BYTES:
            if not self._dropping:
                _log.warning("traces come faster than they can be written down, some are dropped")
            self._dropping = True
            return
        self._dropping = False
        self._handed += len(traces)
        self._handed_bytes += copied
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
                _log.warning("cannot write to %r, traces are lost: %s", sink, error)
            self._failing.add(sink)
        except Exception:
            _log.exception("cannot write down %d traces", len(traces))
        else:
            self._failing.discard(sink)


class SpanSinkLike(TraceSink, Protocol):
    """A sink with settings that the protocol reports."""

    settings: dict[str, str]


def _span_sink(options: TraceOptions) -> SpanSinkLike:
    try:
        module = import_module("conch.observability.tracing.opentelemetry")
    except ImportError as error:
        raise ConfigError(
            "--trace-config=mode=opentelemetry needs the packages of OpenTelemetry: "
            f"pip install 'conch-server[opentelemetry]' ({error})"
        ) from error
    sink: SpanSinkLike = module.SpanSink(options)
    return sink
