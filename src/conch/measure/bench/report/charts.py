"""The charts of a certificate: levels compared, distributions and seconds of one level, effects of an A/B run."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import ceil, exp, floor, inf, log, nan

from markupsafe import Markup

from conch.base.report.axis import Axis, number, percent, seconds
from conch.base.report.chart import Chart, ChartMark, ChartPoint, ChartRow, ChartSeries, RowSpan, draw_rows
from conch.measure.bench.measurement import Effect, Estimate, Measurement, TimeDistribution
from conch.measure.bench.report.certificate import Saturation

_MAX_BARS = 70  # of a distribution
_MAX_CURVES = 7  # of levels in one chart
_MAX_SECONDS = 150  # points of a line over time
_MARKED = ("50", "90", "99", "99.9")
_COLORS = {"better": 2, "worse": 5}


def level_charts(levels: Sequence[Measurement], saturation: Saturation | None) -> Iterator[Chart]:
    """Yield what compares levels: throughput, latency, and where the time goes."""
    numeric = sorted((level for level in levels if level.level.kind != "trace"), key=lambda level: level.level.value)
    if len(numeric) > 1:
        yield _throughput(numeric, saturation)
        yield _latency(numeric)
    known = _representative([level for level in levels if level.latency and level.latency.histogram])
    if known:
        curves = [
            ChartSeries(level.level.label, _cumulative(level.latency), "line", index)
            for index, level in enumerate(known)
            if level.latency
        ]
        summary = "The share of requests answered within a time."
        within = Axis("latency", seconds, log=True, tight=True)
        yield Chart("Cumulative latency", within, Axis("share of requests", percent, include=(0, 1), tight=True),
                    curves, summary)  # fmt: skip
        latencies = [(level.level.label, level.latency) for level in known if level.latency]
        yield _spectrum("Percentile spectrum", latencies)
    yield from _server(levels)


def one_level_charts(level: Measurement) -> Iterator[Chart]:
    """Yield the distributions of a level, and its seconds."""
    tokens, responses, slo = level.tokens, level.responses, level.slo
    for title, distribution, bound in (
        ("Latency", level.latency, slo.get("latency")),
        ("Time to first token", tokens and tokens.first_token, slo.get("ttft")),
        ("Time between tokens", tokens and tokens.inter_token, slo.get("itl")),
        ("Time to first response", responses and responses.first, slo.get("ttft")),
        ("Time between responses", responses and responses.gap, slo.get("itl")),
    ):
        if distribution and distribution.histogram:
            yield _distribution(title, distribution, bound)
    if level.latency and level.service_latency and _differ(level.latency, level.service_latency):
        both = [("from the intended time", level.latency), ("from sending", level.service_latency)]
        yield _spectrum("With and without the wait for sending", both)
    yield from _seconds(level)


def _differ(latency: TimeDistribution, service: TimeDistribution) -> bool:
    """Return whether the P99 of the time since sending is more than 5 % off the P99 since the intended time."""
    if not latency.histogram or not service.histogram or "99" not in service.percentiles.keys() & latency.percentiles:
        return False
    return abs(service.percentiles["99"].value / latency.percentiles["99"].value - 1) > 0.05


def draw_effects(effects: Sequence[Effect]) -> Markup:
    """Return the changes from A to B with their intervals."""
    rows = []
    for effect in effects:
        change = effect.change
        if change.value != change.value:
            continue
        low, high = (change.value if end is None else end for end in (change.low, change.high))
        name, color = f"{effect.level}: {effect.quantity}", _COLORS.get(effect.verdict, 7)
        tip = f"{name}: {_change(change.value)} ({_change(low)} to {_change(high)}), {effect.verdict}"
        rows.append(ChartRow(name, [RowSpan(low, high, color, tip, dot=change.value)]))
    summary = "The change from A to B. An interval that holds 0 decides nothing."
    axis = Axis("change from A to B", _change, zero=False, include=(0,))
    legend = [*_COLORS.items(), ("undecided", 7)]
    return draw_rows("Effects with their intervals of 95 %", axis, rows, summary=summary, legend=legend)


def _change(value: float) -> str:
    return f"{'+' if value > 0 else '−' if value < 0 else ''}{percent(abs(value))}"


def _point(x: float, estimate: Estimate, note: str, label: str = "") -> ChartPoint:
    return ChartPoint(x, estimate.value, estimate.low, estimate.high, note=note, label=label)


def _work(level: Measurement) -> Estimate:
    return level.tokens.output_rate if level.tokens else level.throughput


def _unit(levels: Sequence[Measurement]) -> str:
    return "output tokens per second" if any(level.tokens for level in levels) else "requests per second"


def _load(levels: Sequence[Measurement]) -> str:
    return "offered requests per second" if levels[0].level.kind == "rate" else "concurrency"


def _throughput(levels: Sequence[Measurement], saturation: Saturation | None) -> Chart:
    load, first = _load(levels), levels[0]
    values = [float(level.level.value) for level in levels]
    points = [
        _point(value, _work(level), f"{load} {level.level.label}") for value, level in zip(values, levels, strict=True)
    ]
    highest = max(_work(level).value for level in levels)
    slope = _work(first).value / values[0]
    end = min(values[-1], 1.2 * highest / slope) if slope > 0 else values[-1]
    stops = [values[0] * (end / values[0]) ** (step / 24) for step in range(25)]  # a curve on a logarithmic axis
    ideal = [ChartPoint(stop, slope * stop) for stop in stops]
    reached = [level for level in levels if saturation and saturation.reached and level.level.label == saturation.level]
    return Chart(
        f"Throughput over {load}",
        Axis(load, number, log=values[-1] / values[0] > 12, ticks=values if len(values) < 8 else ()),
        Axis(_unit(levels), number),
        [ChartSeries("measured", points, "dotted line"), ChartSeries("linear scaling", ideal, "line", 7, dashed=True)],
        saturation.message if saturation else "",
        [ChartMark("saturation", x=level.level.value) for level in reached],
    )


def _latency(levels: Sequence[Measurement]) -> Chart:
    load, unit = _load(levels), _unit(levels)
    curves = []
    for color, name in enumerate(("50", "95", "99")):
        points = [
            _point(_work(level).value, level.latency.percentiles[name],
                   f"{load} {level.level.label}: {number(_work(level).value)} {unit}",
                   level.level.label if name == "50" else "")
            for level in levels
            if level.latency and name in level.latency.percentiles
        ]  # fmt: skip
        curves.append(ChartSeries(f"P{name}", points, "dotted line", color))
    summary = f"One point for each level, labelled with its {load}."
    return Chart("Latency over throughput", Axis(unit, number), Axis("latency", seconds, log=True), curves, summary)


def _representative(levels: Sequence[Measurement]) -> Sequence[Measurement]:
    """Return the first and the last level, and some between them."""
    if len(levels) <= _MAX_CURVES:
        return levels
    return [levels[round(index * (len(levels) - 1) / (_MAX_CURVES - 1))] for index in range(_MAX_CURVES)]


def _cumulative(distribution: TimeDistribution) -> list[ChartPoint]:
    points, below = [], 0
    for edge, count in distribution.histogram:
        below += count
        points.append(ChartPoint(edge, below / distribution.count))
    return points


def _spectrum(title: str, distributions: Sequence[tuple[str, TimeDistribution]]) -> Chart:
    curves = []
    for color, (name, distribution) in enumerate(distributions):
        points = [ChartPoint(1 / (1 - point.y), point.x) for point in _cumulative(distribution) if point.y < 1]
        points.append(ChartPoint(distribution.count, distribution.max, note=f"maximum of {distribution.count:,}"))
        curves.append(ChartSeries(name, points, "line", color))
    most = max(distribution.count for _, distribution in distributions)
    across = Axis("percentile", lambda value: f"P{float(f'{100 - 100 / value:.6g}'):g}", log=True, tight=True,
                  ticks=[10.0**power for power in range(7) if 10**power <= most], include=(1,))  # fmt: skip
    summary = "Both axes are logarithmic; to the right are the slowest requests."
    return Chart(title, across, Axis("latency", seconds, log=True), curves, summary)


def _distribution(title: str, distribution: TimeDistribution, bound: float | None) -> Chart:
    summary = f"{distribution.count:,} values; mean {seconds(distribution.mean.value)}, "
    summary += f"maximum {seconds(distribution.max)}."
    bars = _bars(distribution)
    marks = [
        ChartMark(f"P{name} {seconds(percentile.value)}", x=percentile.value)
        for name in _MARKED
        if (percentile := distribution.percentiles.get(name)) and distribution.count * (1 - float(name) / 100) >= 1
    ]
    if bound is not None:
        marks.append(ChartMark(f"SLO {seconds(bound)}", x=bound))
    marks.sort(key=lambda mark: mark.x or 0.0)
    room = max(bar.y for bar in bars) * (1.1 + 0.07 * len(marks))
    return Chart(
        title,
        Axis("time (logarithmic)", seconds, log=True, tight=True),
        Axis("share", percent, include=(room,)),
        [ChartSeries("share", bars, "bars")],
        summary,
        marks,
    )


def _bars(distribution: TimeDistribution) -> list[ChartPoint]:
    """Return buckets of equal width on a logarithmic axis."""
    edges = [edge for edge, _ in distribution.histogram]
    growth = min((high / low for low, high in pairwise(edges)), default=inf)
    width = log(growth if 1 < growth < inf else 1.05)
    width *= max(1, ceil(log(edges[-1] / edges[0]) / width / _MAX_BARS))
    counts: dict[int, int] = {}
    for edge, count in distribution.histogram:
        index = floor((log(edges[-1]) - log(edge)) / width + 1e-6)
        counts[index] = counts.get(index, 0) + count
    bars = []
    for index, count in sorted(counts.items(), reverse=True):
        low, high = (edges[-1] * exp(-place * width) for place in (index + 1, index))
        bars.append(ChartPoint(high, count / distribution.count, x0=low, note=f"{seconds(low)} to {seconds(high)}"))
    return bars


def _seconds(level: Measurement) -> Iterator[Chart]:
    warm, end = level.warm_up_s, level.warm_up_s + level.window_s
    load = [name for name in level.series if any(word in name for word in ("cpu", "gpu", "utilization"))]
    for title, names, unit in (
        ("Throughput over time", ("throughput", "errors"), Axis("per second", number)),
        ("Latency over time", ("p50", "p99"), Axis("latency", seconds, log=True)),
        ("Tokens over time", ("output_tokens", "input_tokens"), Axis("tokens per second", number)),
        ("Responses over time", ("responses",), Axis("responses per second", number)),
        ("Requests in flight and queued", ("in_flight", "queue"), Axis("requests", number)),
        ("Processor use over time", [n for n in load if "power" not in n and "memory" not in n], Axis("", number)),
    ):
        lines = _lines(level.series, names, end)
        constant = len(lines) == 1 and len({point.y for point in lines[0].points[2:-2]}) < 2
        if lines and not (title.startswith("Requests") and constant):
            yield Chart(
                title,
                Axis("seconds since the start", number, tight=True),
                unit,
                lines,
                marks=[ChartMark("end of window", x=end)],
                band=(0.0, warm, "warm-up") if warm > 0 else None,
            )


def _lines(series: Mapping[str, Sequence[float]], names: Sequence[str], end: float) -> list[ChartSeries]:
    """Return the whole seconds of series; the last second is not a whole one."""
    names = [name for name in names if series.get(name) and (name != "errors" or any(series[name]))]
    lines = []
    for color, name in enumerate(names):
        points = [
            ChartPoint(second, nan if value is None else value)
            for second, value in enumerate(series[name])
            if second + 1 <= end + 0.1 or second < 3
        ]
        stride = ceil(len(points) / _MAX_SECONDS)
        text = {"throughput": "requests", "p50": "P50", "p99": "P99"}.get(name, name.replace("_", " "))
        lines.append(
            ChartSeries(text, [_mean(points[at : at + stride]) for at in range(0, len(points), stride)], "line", color)
        )
    return lines


def _mean(points: Sequence[ChartPoint]) -> ChartPoint:
    """Return the mean of the known values of some seconds."""
    known = [point.y for point in points if point.y == point.y]
    return replace(points[0], y=sum(known) / len(known) if known else nan)


def _server(levels: Sequence[Measurement]) -> Iterator[Chart]:
    """Yield the mean time of a request in the parts that the server reports, and the rest."""
    usable = [
        (level, level.latency.mean.value, level.server)
        for level in levels
        if level.latency and level.server and (level.server.queue_s is not None or level.server.compute_s is not None)
    ]
    if not usable:
        return
    parts = {"queue": "queue_s", "compute": "compute_s"}
    if any(server.compute_infer_s is not None for _, _, server in usable):
        parts = {"queue": "queue_s", "compute input": "compute_input_s", "compute inference": "compute_infer_s",
                 "compute output": "compute_output_s"}  # fmt: skip
    sums = [0.0] * len(usable)
    series = []
    for color, name in enumerate([*parts, "network, HTTP and client"]):
        bars = []
        for index, (level, mean, server) in enumerate(usable):
            value = (getattr(server, parts[name]) or 0.0) if name in parts else mean - sums[index]
            low, sums[index] = sums[index], sums[index] + max(value, 0.0)
            note = f"{level.level.kind} {level.level.label}"
            bars.append(ChartPoint(index + 0.85, sums[index], low=low, x0=index + 0.15, note=note))
        series.append(ChartSeries(name, bars, "bars", color if name in parts else 7))
    names = [level.level.label for level, _, _ in usable]
    across = Axis(usable[0][0].level.kind, partial(_name_at, names), tight=True, include=(0, len(names)),
                  ticks=[index + 0.5 for index in range(len(names))])  # fmt: skip
    summary = "Mean time of a request: what the server's own metrics report, and the rest of the latency that the "
    summary += "client saw."
    yield Chart("Where the time goes", across, Axis("mean time", seconds), series, summary)


def _name_at(names: Sequence[str], place: float) -> str:
    return names[min(int(place), len(names) - 1)]
