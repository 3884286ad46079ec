"""The columns of the table of levels, for terminals, Markdown and HTML alike."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from conch.measure.bench.measurement import PERCENTILES, Estimate, Measurement, TokenFigures
from conch.measure.bench.report.number_text import MISSING, PERCENT, PLAIN, SECONDS, Unit, format_estimate, format_value
from conch.measure.bench.report.scaling import LevelScaling, scaling
from conch.measure.bench.statistics.quantities import QUANTITIES, errors_of

_PERCENTILES = ("50", "95", "99")  # of latency, in every table


@dataclass(frozen=True, slots=True)
class LevelRow:
    """What a row of the table shows."""

    measurement: Measurement
    scaling: LevelScaling


@dataclass(frozen=True, slots=True)
class LevelColumn:
    """A column. A column without any value is left out."""

    title: str
    cell: Callable[[LevelRow], str]


def level_table(
    measurements: Sequence[Measurement], percentiles: Sequence[str] = ()
) -> tuple[list[str], list[list[str]]]:
    """Return titles and rows of cells, one row per level; the first column is the level.

    `percentiles` of latency, such as "99.9", are columns beside the usual ones.
    """
    rows = [LevelRow(*measurement) for measurement in zip(measurements, scaling(measurements), strict=True)]
    cells = [(column.title, [column.cell(row) for row in rows]) for column in _columns(percentiles)]
    if {measurement.level.kind for measurement in measurements} != {"concurrency"}:
        cells[0] = ("Load", cells[0][1])
    shown = [(title, column) for title, column in cells if any(cell != MISSING for cell in column)]
    return [title for title, _ in shown], [[column[row] for _, column in shown] for row in range(len(rows))]


def asked_percentiles(settings: Mapping[str, object]) -> list[str]:
    """Return the percentiles of --percentile, from the settings of a certificate."""
    return str(settings.get(PERCENTILES) or "").replace(",", " ").split()


def _columns(percentiles: Sequence[str]) -> list[LevelColumn]:
    """Return the columns, those of percentiles in ascending order."""
    shown = {f"P{name}": name for name in (*_PERCENTILES, *percentiles)}
    ordered = [
        LevelColumn(title, _percentile(name)) for title, name in sorted(shown.items(), key=lambda item: float(item[1]))
    ]
    return [*COLUMNS[:_BEFORE_PERCENTILES], *ordered, *COLUMNS[_BEFORE_PERCENTILES:]]


def remarks(measurements: Sequence[Measurement]) -> list[str]:
    """Return what a reader of the table must know: percentiles of few requests, how tokens are counted."""
    remarks = [_scarce_percentiles(measurements)]
    sources = sorted({measurement.tokens.source for measurement in measurements if measurement.tokens})
    remarks += [
        f"Tokens are counted by {source}: the server does not report them." for source in sources if source != "usage"
    ]
    if any(measurement.responses for measurement in measurements):
        remarks.append("TTFR is the time to the first response, Gap the time between two responses of a request.")
    remarks += [_prompts(measurements)]
    return [remark for remark in remarks if remark]


def _prompts(measurements: Sequence[Measurement]) -> str:
    """Return how many different prompts were sent, and how many of their tokens the server had in its cache."""
    known = [
        (measurement, measurement.tokens)
        for measurement in measurements
        if measurement.tokens and measurement.tokens.distinct_prompts is not None
    ]
    if not known:
        return ""
    requests = sum(level.outcomes.get("ok", 0) for level, _ in known)
    repeated = [tokens.distinct_prompts or 0 for level, tokens in known if _repeats(level, tokens)]
    sentence = f"No prompt was sent twice, in {requests:,} requests."
    if repeated:
        sentence = f"{max(repeated):,} different prompts were sent in turn, in {requests:,} requests."
    reported = [tokens for _, tokens in known if tokens.cached_tokens is not None and tokens.input_tokens]
    if reported:
        cached = sum(tokens.cached_tokens or 0 for tokens in reported)
        share = format_value(cached / sum(tokens.input_tokens for tokens in reported), PERCENT)
        sentence += f" {share} of their tokens came from the server's prefix cache."
    return sentence


def _repeats(measurement: Measurement, tokens: TokenFigures) -> bool:
    return (tokens.distinct_prompts or 0) < measurement.outcomes.get("ok", 0)


def _scarce_percentiles(measurements: Sequence[Measurement]) -> str:
    """Return a sentence on percentiles that are a maximum, for want of requests; "" if there are none."""
    sentences = []
    for percentile in (95, 99):
        needed = round(100 / (100 - percentile))
        few = [
            measurement.level.label
            for measurement in measurements
            if measurement.latency and measurement.latency.count < needed
        ]
        if few:
            levels = "at all levels" if len(few) == len(measurements) else f"at {', '.join(few)}"
            sentences.append(f"P{percentile} is the maximum {levels}: fewer than {needed} requests.")
    return " ".join(sentences)


def _estimate(read: Callable[[Measurement], Estimate | None], units: tuple[Unit, ...]) -> Callable[[LevelRow], str]:
    return lambda row: format_estimate(read(row.measurement), units)


def _value(read: Callable[[Measurement], float | None], units: tuple[Unit, ...]) -> Callable[[LevelRow], str]:
    return lambda row: format_value(read(row.measurement), units)


def _quantity(name: str, units: tuple[Unit, ...] = SECONDS) -> Callable[[LevelRow], str]:
    return _estimate(QUANTITIES[name].read, units)


def _percentile(name: str) -> Callable[[LevelRow], str]:
    return _estimate(lambda level: level.latency.percentiles.get(name) if level.latency else None, SECONDS)


def _total_token_rate(measurement: Measurement) -> float | None:
    tokens = measurement.tokens
    return tokens.input_rate.value + tokens.output_rate.value if tokens else None


def _errors(row: LevelRow) -> str:
    errors = errors_of(row.measurement)
    share = errors / max(row.measurement.requests, errors, 1)
    return f"{errors:,} ({format_value(share, PERCENT)})" if errors else "0"


def _cancelled(measurement: Measurement) -> str:
    cancelled = measurement.outcomes.get("cancelled", 0)
    return f"{cancelled:,}" if cancelled else MISSING


def _gpu_utilization(measurement: Measurement) -> float | None:
    known = [gpu.utilization_ratio for gpu in measurement.gpus if gpu.utilization_ratio is not None]
    return sum(known) / len(known) if known else None


def _gpu_power(measurement: Measurement) -> float | None:
    known = [gpu.power_watts for gpu in measurement.gpus if gpu.power_watts is not None]
    return sum(known) if known else None


COLUMNS = (
    LevelColumn("Concurrency", lambda row: row.measurement.level.label),
    LevelColumn("Requests", lambda row: f"{row.measurement.requests:,}"),
    LevelColumn("Wall", _value(lambda level: level.window_s, SECONDS)),
    LevelColumn("Tok/s", _value(_total_token_rate, PLAIN)),
    LevelColumn("Output tok/s", _quantity("output_rate", PLAIN)),
    LevelColumn("Req/s", _quantity("throughput", PLAIN)),
    LevelColumn("Responses/s", _quantity("response_rate", PLAIN)),
    LevelColumn("Max", _value(lambda level: level.latency.max if level.latency else None, SECONDS)),
    LevelColumn("TTFT P50", _quantity("ttft_p50")),
    LevelColumn("TTFT P99", _quantity("ttft_p99")),
    LevelColumn("ITL P50", _quantity("itl_p50")),
    LevelColumn("ITL P99", _quantity("itl_p99")),
    LevelColumn("TTFR P50", _quantity("ttfr_p50")),
    LevelColumn("TTFR P99", _quantity("ttfr_p99")),
    LevelColumn("Gap P50", _quantity("gap_p50")),
    LevelColumn("Gap P99", _quantity("gap_p99")),
    LevelColumn("Errors", _errors),
    LevelColumn("Cancelled", lambda row: _cancelled(row.measurement)),
    LevelColumn("Goodput", _estimate(lambda level: level.goodput_ratio, PERCENT)),
    LevelColumn("GPU", _value(_gpu_utilization, PERCENT)),
    LevelColumn("GPU power", lambda row: _watts(_gpu_power(row.measurement))),
    LevelColumn("Queue", _value(lambda level: level.server.queue_s if level.server else None, SECONDS)),
    LevelColumn("Compute", _value(lambda level: level.server.compute_s if level.server else None, SECONDS)),
    LevelColumn("Batch", _value(lambda level: level.server.batch_size if level.server else None, PLAIN)),
    LevelColumn("Server cores", _value(lambda level: level.server.cpu_cores if level.server else None, PLAIN)),
    LevelColumn("Efficiency", lambda row: format_value(row.scaling.efficiency, PERCENT)),
)


_BEFORE_PERCENTILES = [column.title for column in COLUMNS].index("Max")


def _watts(power: float | None) -> str:
    return f"{power:,.0f} W" if power is not None else MISSING
