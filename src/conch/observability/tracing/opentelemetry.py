"""Traces as spans of OpenTelemetry, sent to a collector by OTLP over HTTP.

The one place that knows the package. Spans are made of complete traces, in the thread that writes them down; the SDK's
batch processor bounds how many wait, and drops what a collector does not take.
"""

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from threading import Timer
from time import monotonic_ns, time_ns

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.environment_variables import (
    OTEL_BSP_MAX_EXPORT_BATCH_SIZE,
    OTEL_BSP_MAX_QUEUE_SIZE,
    OTEL_BSP_SCHEDULE_DELAY,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

import conch
from conch.errors import ConchError
from conch.observability.tracing.request_trace import ModelSpan, Trace
from conch.observability.tracing.trace_file import activities_of, compute_of
from conch.options.trace import TraceOptions

_log = logging.getLogger(__name__)

_SERVICE = "triton-inference-server"
_STOP_LIMIT_S = 5.0


class SpanSink:
    """Where the traces of a server go."""

    def __init__(self, options: TraceOptions) -> None:
        """Start what sends spans. `OTEL_…` variables count where the options say nothing."""
        queue = _number(options.bsp_max_queue_size, OTEL_BSP_MAX_QUEUE_SIZE, 2048)
        delay = _number(options.bsp_schedule_delay, OTEL_BSP_SCHEDULE_DELAY, 5000)
        batch = min(_number(options.bsp_max_export_batch_size, OTEL_BSP_MAX_EXPORT_BATCH_SIZE, 512), queue)
        # What the protocol's settings report of this mode.
        self.settings: dict[str, str] = {"url": options.url}
        if options.resource:
            self.settings["resource"] = ",".join(options.resource)
        self.settings |= {
            "bsp_max_queue_size": str(queue),
            "bsp_max_export_batch_size": str(batch),
            "bsp_schedule_delay": str(delay),
        }
        given = dict(pair.split("=", 1) for pair in options.resource)
        # The environment's service name counts more than Triton's, a given one more than that.
        environment = Resource.create()
        named = environment.attributes.get("service.name", "unknown_service")
        service = _SERVICE if str(named).startswith("unknown_service") else named
        self._resource = environment.merge(Resource({"service.name": service, **given}))
        self._scope = InstrumentationScope("triton-server", conch.__version__)
        url = options.url if "://" in options.url else f"http://{options.url}"
        self._exporter = _Exporter(url)
        self._processor = BatchSpanProcessor(
            self._exporter, max_queue_size=queue, schedule_delay_millis=delay, max_export_batch_size=batch
        )

    def __repr__(self) -> str:
        return f"collector '{self.settings['url']}'"

    def write(self, traces: Sequence[Trace]) -> None:
        """Hand traces to what sends them."""
        offset = time_ns() - monotonic_ns()
        for trace in traces:
            if trace.rules is not None:
                for span in self._spans(trace, offset):
                    self._processor.on_end(span)

    def close(self) -> None:
        """Send what is left, if the collector takes it soon."""
        # A collector that does not answer would be tried again and again.
        limit = Timer(0.0 if self._exporter.failing else _STOP_LIMIT_S, self._exporter.shutdown)
        limit.daemon = True
        limit.start()
        self._processor.shutdown()  # type: ignore[no-untyped-call]
        limit.cancel()

    def _spans(self, trace: Trace, offset: int) -> Iterable[ReadableSpan]:
        remote = trace.remote
        state = TraceState.from_header([remote.state]) if remote is not None and remote.state else TraceState()
        whole = self._context(trace, trace.span_id, state)
        above = SpanContext(remote.trace_id, remote.span_id, True, _SAMPLED, state) if remote is not None else None
        yield self._span("InferRequest", whole, above, trace.marks, trace.received, trace.closed, offset, trace.error)
        for span in trace.spans:
            context = self._context(trace, span.span_id, state)
            parent = self._context(trace, span.parent_id, state)
            timeline, compute = span.timeline, compute_of(span)
            inside = {name for name, _ in compute}
            events = [event for event in activities_of(span) if event[0] not in inside]
            yield self._span(
                span.model,
                context,
                parent,
                events,
                span.begun,
                timeline.done,
                offset,
                span.error,
                _attributes(span),
            )
            if compute:
                leaf = self._context(trace, span.span_id ^ 1 or 1, state)
                yield self._span("compute", leaf, context, compute, timeline.started, timeline.done, offset, None)

    def _context(self, trace: Trace, span_id: int, state: TraceState) -> SpanContext:
        return SpanContext(trace.trace_id, span_id, False, _SAMPLED, state)

    def _span(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        events: Iterable[tuple[str, int]],
        start: int,
        end: int,
        offset: int,
        error: ConchError | None,
        attributes: Mapping[str, str | int] | None = None,
    ) -> ReadableSpan:
        return ReadableSpan(
            name,
            context=context,
            parent=parent,
            resource=self._resource,
            attributes=attributes,
            events=[Event(event, timestamp=at + offset) for event, at in events],
            kind=SpanKind.SERVER,
            status=Status(StatusCode.ERROR, error.message) if error is not None else Status(),
            start_time=start + offset,
            end_time=end + offset,
            instrumentation_scope=self._scope,
        )


_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


def _attributes(span: ModelSpan) -> dict[str, str | int]:
    attributes: dict[str, str | int] = {
        "triton.model_name": span.model,
        "triton.model_version": span.version,
        "triton.trace_id": span.number,
        "triton.trace_parent_id": span.parent,
    }
    if span.request_id:
        attributes["triton.request_id"] = span.request_id
    # By OpenTelemetry's conventions for what generates, and for what makes embeddings, which has no output of tokens.
    if span.prompt_tokens:
        attributes["gen_ai.usage.input_tokens"] = span.prompt_tokens
    if span.completion_tokens:
        attributes["gen_ai.usage.output_tokens"] = span.completion_tokens
    return attributes


def _number(given: int | None, variable: str, default: int) -> int:
    if given is not None:
        return given
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() and int(text) else default


class _Exporter(SpanExporter):
    """Sends spans, and says once that they cannot be sent, until they can be again."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._inner = OTLPSpanExporter(endpoint=url)
        self.failing = False  # whether what was sent last was lost
        self._words = _LastWords()
        # The package would write several lines for every batch.
        logger = logging.getLogger("opentelemetry")
        logger.addHandler(self._words)
        logger.propagate = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send spans."""
        result = self._inner.export(spans)
        failed = result is not SpanExportResult.SUCCESS
        if failed and not self.failing:
            _log.warning("cannot send traces to '%s', they are lost: %s", self._url, self._words.text)
        self.failing = failed
        return result

    def shutdown(self) -> None:
        """Send no more."""
        self._inner.shutdown()  # type: ignore[no-untyped-call]

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Nothing waits here."""
        return self._inner.force_flush(timeout_millis)


class _LastWords(logging.Handler):
    """Keeps the last message of the package, which has the reason of a failure."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = "no reason given"
        self._told = False

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message; tell the first time that spans were dropped."""
        self.text = record.getMessage()
        if "Queue full" in self.text and not self._told:
            self._told = True
            _log.warning("more traces than can be sent, some are dropped: bsp_max_queue_size bounds those that wait")
