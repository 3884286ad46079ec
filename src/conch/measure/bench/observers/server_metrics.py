"""Figures from the server's own metrics: Triton's names (Conch has them too), vLLM's and OpenVINO Model Server's."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from time import monotonic_ns

from conch.base.http.prometheus import ScrapeSettings, scrape
from conch.measure.bench.measurement import Note, ServerFigures
from conch.measure.bench.observers.observer import Observed, ServerObserver, nearest

_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(\{.*\})?\s+(\S+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")
_MICROSECOND = 1e-6

Totals = Mapping[str, float]
"""Sums of the series of one model, by name of the metric."""


@dataclass(frozen=True, slots=True)
class MetricSeries:
    """One line: a value with labels."""

    name: str
    labels: dict[str, str]
    value: float


def parse_exposition(text: str) -> Iterator[MetricSeries]:
    """Yield the series of a scrape. Lines that are not understood are skipped."""
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        if sample := _SAMPLE.match(line):
            try:
                value = float(sample[3])
            except ValueError:
                continue
            labels = {name: _ESCAPE.sub(_unescaped, raw) for name, raw in _LABEL.findall(sample[2] or "")}
            yield MetricSeries(sample[1], labels, value)


def _unescaped(escape: re.Match[str]) -> str:
    return "\n" if escape[1] == "n" else escape[1]


@dataclass(frozen=True, slots=True)
class _Dialect:
    """The names of one server. A figure is the growth of a sum of metrics, times `scale`, per request."""

    requests: str
    inferences: str
    executions: str
    scale: float
    durations: Mapping[str, str]  # field of ServerFigures → metric
    queue: str  # gauge of waiting requests
    label: str  # that names the model
    hits: str = ""
    lookups: Sequence[str] = ()


_TRITON = _Dialect(
    requests="nv_inference_request_success",
    inferences="nv_inference_count",
    executions="nv_inference_exec_count",
    scale=_MICROSECOND,
    durations={
        "queue_s": "nv_inference_queue_duration_us",
        "compute_input_s": "nv_inference_compute_input_duration_us",
        "compute_infer_s": "nv_inference_compute_infer_duration_us",
        "compute_output_s": "nv_inference_compute_output_duration_us",
    },
    queue="nv_inference_pending_request_count",
    label="model",
    hits="nv_cache_num_hits_per_model",
    lookups=("nv_cache_num_hits_per_model", "nv_cache_num_misses_per_model"),
)
_VLLM = _Dialect(
    requests="vllm:request_success_total",
    inferences="",
    executions="",
    scale=1.0,
    durations={
        "queue_s": "vllm:request_queue_time_seconds_sum",
        "compute_infer_s": "vllm:request_inference_time_seconds_sum",
    },
    queue="vllm:num_requests_waiting",
    label="model_name",
    hits="vllm:prefix_cache_hits_total",
    lookups=("vllm:prefix_cache_queries_total",),
)
_OPENVINO = _Dialect(
    requests="ovms_requests_success",
    inferences="",
    executions="",
    scale=_MICROSECOND,
    durations={"queue_s": "ovms_wait_for_infer_req_time_us_sum", "compute_infer_s": "ovms_inference_time_us_sum"},
    queue="ovms_infer_req_queue_size",
    label="name",
)
_RESPONSE_CACHE = ((_TRITON.hits,), _TRITON.lookups)
_DIALECTS = (_TRITON, _VLLM, _OPENVINO)


@dataclass(frozen=True, slots=True)
class MetricsSample:
    """The totals of one model at one time."""

    time_ns: int
    totals: Totals


def totals_of(series: Sequence[MetricSeries], model: str) -> dict[str, float]:
    """Return the sums of the model's series, over versions and replicas; {} if the page has none of the model's."""
    totals: dict[str, float] = {}
    names = {dialect.label for dialect in _DIALECTS}
    for sample in series:
        if any(sample.labels.get(label) == model for label in names):
            totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
    return totals


def figures_between(before: Totals, after: Totals) -> ServerFigures | None:
    """Return the figures of the requests between two scrapes, None if neither dialect is known or a counter fell."""
    for dialect in _DIALECTS:
        if dialect.requests in after:
            return None if has_restarted(before, after) else _figures(dialect, before, after)
    return None


def has_restarted(before: Totals, after: Totals) -> bool:
    """Return whether a counter fell, or the duration of the model's load changed: the model was loaded again."""
    loaded = "nv_model_load_duration_secs"
    if loaded in before and loaded in after and before[loaded] != after[loaded]:
        return True
    return any(
        dialect.requests in before and after.get(dialect.requests, 0.0) < before[dialect.requests]
        for dialect in _DIALECTS
    )


def queue_depth(totals: Totals) -> float | None:
    """Return how many requests wait in the server."""
    return next((totals[dialect.queue] for dialect in _DIALECTS if dialect.queue in totals), None)


def _figures(dialect: _Dialect, before: Totals, after: Totals) -> ServerFigures:
    def growth(name: str) -> float:
        return after.get(name, 0.0) - before.get(name, 0.0)

    requests = growth(dialect.requests)
    durations = {
        field: growth(name) * dialect.scale / requests
        for field, name in dialect.durations.items()
        if name in after and requests > 0
    }
    compute = [value for field, value in durations.items() if field.startswith("compute")]
    executions = growth(dialect.executions)
    lookups = sum(growth(name) for name in dialect.lookups)
    return ServerFigures(
        requests=int(requests),
        compute_s=sum(compute) if compute else None,
        queue_s=durations.get("queue_s"),
        compute_input_s=durations.get("compute_input_s"),
        compute_infer_s=durations.get("compute_infer_s"),
        compute_output_s=durations.get("compute_output_s"),
        batch_size=growth(dialect.inferences) / executions if executions > 0 else None,
        cache_hit_ratio=growth(dialect.hits) / lookups if lookups > 0 else None,
    )


def _cache_notes(before: Totals, after: Totals) -> tuple[Note, ...]:
    """Return a note if a response cache answered requests. vLLM's hits are of prefixes: the model runs nevertheless."""
    hits, lookups = (sum(after.get(name, 0.0) - before.get(name, 0.0) for name in names) for names in _RESPONSE_CACHE)
    if hits <= 0:
        return ()
    text = f"the server answered {100 * hits / lookups:.3g} % of requests from its response cache"
    advice = "the figures are not of the model alone; --distinct sends more different requests"
    return (Note("response-cache", "warning", f"{text}: {advice}"),)


class ServerMetrics(ServerObserver):
    """Scrapes the server's metrics."""

    def __init__(self, settings: ScrapeSettings, model: str, *, required: bool = False) -> None:
        """`required`: the user named the URL, so a note tells why there are no figures."""
        self._settings = settings
        self._model = model
        self._required = required
        self._samples: list[MetricsSample] = []
        self._failure = ""

    def sample(self) -> None:
        try:
            time_ns = monotonic_ns()
            totals = totals_of(list(parse_exposition(scrape(self._settings))), self._model)
        except OSError as error:
            self._failure = f"{self._settings.url}: {error.strerror or error}"
            return
        if totals:
            self._samples.append(MetricsSample(time_ns, totals))
        else:
            self._failure = f"{self._settings.url} has no metrics of model '{self._model}'"

    def observed(self, start_ns: int, end_ns: int) -> Observed:
        """Return the figures between the scrapes nearest to the edges."""
        if len(self._samples) < 2:
            note = Note("no-server-metrics", "info", f"no metrics of the server: {self._failure}")
            return Observed(notes=(note,) if self._required and self._failure else ())
        times = [sample.time_ns for sample in self._samples]
        window = self._samples[nearest(times, start_ns) : nearest(times, end_ns) + 1]
        restarts = sum(has_restarted(a.totals, b.totals) for a, b in pairwise(window))
        if restarts:
            note = Note(
                "server-restart", "invalid", f"the server restarted or reloaded the model {restarts} time(s) in the run"
            )
            return Observed(notes=(note,))
        if len(window) < 2:
            return Observed()
        before, after = window[0].totals, window[-1].totals
        return Observed(figures_between(before, after), notes=_cache_notes(before, after))

    def gauges(self) -> dict[str, float]:
        depth = queue_depth(self._samples[-1].totals) if self._samples else None
        return {} if depth is None else {"queue": depth}
