"""Send traces as OpenTelemetry spans to a collector, by OTLP over HTTP.

The only module that imports the package. Spans are made from complete traces, in the observer's thread. The SDK's batch
processor has a bounded queue and drops spans that a collector does not accept.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from threading import Thread
from time import monotonic_ns, time_ns

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.environment_variables import (
    OTEL_BSP_MAX_EXPORT_BATCH_SIZE,
    OTEL_BSP_MAX_QUEUE_SIZE,
    OTEL_BSP_SCHEDULE_DELAY,
)
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

import conch
from conch.base.errors import ConchError
from conch.server.observability.collector import OtlpCollector, service_resource
from conch.server.observability.tracing.request_trace import ModelSpan, Trace
from conch.server.observability.tracing.trace_file import activities_of, compute_of
from conch.server.options.trace import TraceOptions

_STOP_TIMEOUT_S = 5.0


class SpanSink:
    """The sink for a collector."""

    def __init__(self, options: TraceOptions) -> None:
        """Start the exporter. `OTEL_…` variables are defaults of the options."""
        queue = _number(options.bsp_max_queue_size, OTEL_BSP_MAX_QUEUE_SIZE, 2048)
        delay = _number(options.bsp_schedule_delay, OTEL_BSP_SCHEDULE_DELAY, 5000)
        batch = min(_number(options.bsp_max_export_batch_size, OTEL_BSP_MAX_EXPORT_BATCH_SIZE, 512), queue)
        collector = OtlpCollector(options.url)
        url, shown = collector.url, collector.public_url
        # For the trace settings endpoint.
        self.settings: dict[str, str] = {"url": options.url if shown == url else shown}
        if options.resource:
            self.settings["resource"] = ",".join(options.resource)
        self.settings |= {
            "bsp_max_queue_size": str(queue),
            "bsp_max_export_batch_size": str(batch),
            "bsp_schedule_delay": str(delay),
        }
        self._resource = service_resource(dict(pair.split("=", 1) for pair in options.resource))
        self._scope = InstrumentationScope("triton-server", conch.__version__)
        self._exporter = _Exporter(collector)
        self._processor = BatchSpanProcessor(
            self._exporter, max_queue_size=queue, schedule_delay_millis=delay, max_export_batch_size=batch
        )

    def __repr__(self) -> str:
        return f"collector '{self.settings['url']}'"

    def write(self, traces: Sequence[Trace]) -> None:
        """Pass traces to the batch processor."""
        offset = time_ns() - monotonic_ns()
        for trace in traces:
            if trace.rules is not None:
                for span in self._spans(trace, offset):
                    self._processor.on_end(span)

    def close(self) -> None:
        """Send the remaining spans within the timeout."""
        # A collector that hangs delays the processor for longer than the timeout.
        sending = Thread(target=self._processor.shutdown, name="conch-spans", daemon=True)
        sending.start()
        sending.join(0.0 if self._exporter.collector.failing else _STOP_TIMEOUT_S)
        self._exporter.shutdown()

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
    # OpenTelemetry's conventions for language models; embeddings have no output tokens.
    if span.prompt_tokens:
        attributes["gen_ai.usage.input_tokens"] = span.prompt_tokens
    if span.completion_tokens:
        attributes["gen_ai.usage.output_tokens"] = span.completion_tokens
    return attributes


def _number(option: int | None, variable: str, default: int) -> int:
    if option is not None:
        return option
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() and int(text) else default


class _Exporter(SpanExporter):
    """Sends spans, with one warning on failure until it succeeds again."""

    def __init__(self, collector: OtlpCollector) -> None:
        self.collector = collector
        self._inner = OTLPSpanExporter(endpoint=collector.url, session=collector.session)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send spans."""
        result = self._inner.export(spans)
        self.collector.note("traces", result is SpanExportResult.SUCCESS, "dropping traces")
        return result

    def shutdown(self) -> None:
        """Stop sending."""
        self._inner.shutdown()  # type: ignore[no-untyped-call]

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Flush the inner exporter."""
        return self._inner.force_flush(timeout_millis)
