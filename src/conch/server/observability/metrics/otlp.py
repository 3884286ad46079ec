"""Send metrics to an OpenTelemetry collector, by OTLP over HTTP.

The only module that imports the package for metrics. Names are those of `/metrics`. Summaries become gauges with the
attribute `quantile`, because the package has no summaries. `OTEL_…` variables of the exporter apply.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from threading import Thread
from time import monotonic, time_ns

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import Exemplar
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

import conch
from conch.domain.exposition import Buckets, Family, Point, Quantiles
from conch.server.observability.collector import OtlpCollector, service_resource

# The time for reading metrics in one turn of the event loop.
_SLICE_S = 0.005
# Units whose suffix is in the names, as UCUM. A collector appends the suffix of a unit to names that lack it, which
# would rename Triton's metrics; they are sent without units.
_UNITS = {"_seconds": "s", "_bytes": "By", "_ratio": "1", "_watts": "W", "_joules": "J", "_celsius": "Cel"}


class MetricsExporter:
    """Sends families at an interval. Life cycle: `run`, until cancelled."""

    def __init__(self, endpoint: str, interval_s: float, families: Callable[[], Iterable[Family]]) -> None:
        """Create the exporter. `endpoint` is the whole URL, with its path, usually `/v1/metrics`."""
        self._collector = OtlpCollector(endpoint)
        self._interval_s = interval_s
        self._families = families
        self._start_ns = time_ns()
        self._resource = service_resource()
        self._scope = InstrumentationScope("conch", conch.__version__)
        self._exporter = OTLPMetricExporter(endpoint=self._collector.url, session=self._collector.session)

    async def run(self) -> None:
        """Send the metrics until cancelled. A failure is logged once, until it succeeds again."""
        try:
            while True:
                await asyncio.sleep(self._interval_s)
                families = await self._collected()
                self._collector.note("metrics", await self._sent(families), "dropping until it accepts them")
        finally:
            self._exporter.shutdown()  # ends the retries of a thread

    async def _collected(self) -> list[tuple[Family, list[Point]]]:
        """Read all points on the event loop, in slices."""
        collected: list[tuple[Family, list[Point]]] = []
        until = monotonic() + _SLICE_S
        for family in self._families():
            points: list[Point] = []
            for point in family.points:
                points.append(point)
                if monotonic() > until:
                    await asyncio.sleep(0)
                    until = monotonic() + _SLICE_S
            if points:
                collected.append((family, points))
        return collected

    async def _sent(self, families: Sequence[tuple[Family, list[Point]]]) -> bool:
        """Send in a daemon thread: the server's end waits for the loop's own threads, a collector may hang."""
        loop = asyncio.get_running_loop()
        sent: asyncio.Future[bool] = loop.create_future()

        def settle(result: bool) -> None:
            if not sent.done():
                sent.set_result(result)

        def send() -> None:
            result = self._send(families)
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(settle, result)

        Thread(target=send, name="conch-otlp-metrics", daemon=True).start()
        return await sent

    def _send(self, families: Sequence[tuple[Family, list[Point]]]) -> bool:
        now_ns = time_ns()
        metrics = [self._metric(family, points, now_ns) for family, points in families]
        scope = ScopeMetrics(self._scope, metrics, "")
        try:
            result = self._exporter.export(MetricsData([ResourceMetrics(self._resource, [scope], "")]))
        except Exception as error:
            self._collector.log.text = f"{type(error).__name__} in OpenTelemetry's package"
            return False
        return result is MetricExportResult.SUCCESS

    def _metric(self, family: Family, points: Iterable[Point], now_ns: int) -> Metric:
        histograms: list[HistogramDataPoint] = []
        numbers: list[NumberDataPoint] = []
        for value, labels in points:
            attributes = dict(labels)
            if isinstance(value, Buckets):
                histograms.append(self._histogram(value, attributes, now_ns))
            elif isinstance(value, Quantiles):
                numbers += [
                    NumberDataPoint({**attributes, "quantile": f"{quantile:g}"}, self._start_ns, now_ns, estimate)
                    for quantile, estimate in value.values
                ]
            else:
                numbers.append(NumberDataPoint(attributes, self._start_ns, now_ns, value))
        data: Gauge | Histogram | Sum = Gauge(numbers)
        if family.kind == "histogram":
            data = Histogram(histograms, AggregationTemporality.CUMULATIVE)
        elif family.kind == "counter":
            data = Sum(numbers, AggregationTemporality.CUMULATIVE, is_monotonic=True)
        base = family.name.removesuffix("_total")
        unit = next((unit for suffix, unit in _UNITS.items() if base.endswith(suffix)), "")
        return Metric(family.name, family.help, unit, data)

    def _histogram(self, value: Buckets, attributes: dict[str, str], now_ns: int) -> HistogramDataPoint:
        counts = [int(count) for count in value.counts]
        below = [0, *counts]
        exemplars = [
            Exemplar({"trace_id": exemplar.trace_id}, float(exemplar.value), int(exemplar.time_s * 1e9))
            for exemplar in (value.exemplars or {}).values()
        ]
        return HistogramDataPoint(
            attributes,
            self._start_ns,
            now_ns,
            counts[-1] if counts else 0,
            value.total,
            [count - before for count, before in zip(counts, below, strict=False)],
            value.bounds[:-1],
            min=None,  # type: ignore[arg-type]  # not measured
            max=None,  # type: ignore[arg-type]
            exemplars=exemplars,
        )
