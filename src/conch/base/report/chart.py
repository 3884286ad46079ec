"""Charts in SVG of any width: positions across are percentages, so that lines stretch and texts keep their size."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil, isfinite
from typing import Literal

from markupsafe import Markup

from conch.base.report.axis import Axis, Scale, number
from conch.base.report.page import stylesheet, tag

_HEIGHT = 220  # pixels of the area within the axes
_ACROSS = 1000  # units of a line that is stretched
_NARROW = 260  # pixels across on a phone: texts that do not overlap there overlap nowhere
_CHARACTER = 7.2  # pixels, at most
_MAX_STOPS = 60  # places across with a tooltip
_ROW, _BAR = 36, 12  # pixels of a row with its name, and of its bar
_MAX_NAME = 48  # characters
_MAX_BOLD = 400  # points of a line of usual width
_LINES, _BARS, _DOTS = ("line", "steps", "area", "dotted line"), ("bars",), ("dots", "dotted line")


@dataclass(frozen=True, slots=True)
class ChartPoint:
    """A value at a place, with its interval. A bar goes from `x0` to `x`, and from `low` or 0 to `y`.

    `note` is the first line of its tooltip, `label` is written beside it.
    """

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    x0: float | None = None
    note: str = ""
    label: str = ""


@dataclass(frozen=True, slots=True)
class ChartSeries:
    """Points in their order. A line has a gap where a value is not finite; `color` is 0 to 7."""

    name: str
    points: Sequence[ChartPoint]
    kind: Literal["line", "steps", "area", "bars", "dots", "dotted line"] = "line"
    color: int = 0
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class ChartMark:
    """A dashed line across the chart, at a place of x or of y, with a text."""

    text: str
    x: float | None = None
    y: float | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """ChartSeries over two axes. `band` is a range of x with a text, such as the warm-up."""

    title: str
    x: Axis
    y: Axis
    series: Sequence[ChartSeries]
    summary: str = ""
    marks: Sequence[ChartMark] = ()
    band: tuple[float, float, str] | None = None


@dataclass(frozen=True, slots=True)
class RowSpan:
    """A bar of a row from `low` to `high`, with its tooltip. A thin one is an interval, with a dot at `dot`."""

    low: float
    high: float
    color: int
    tip: str
    dot: float | None = None


@dataclass(frozen=True, slots=True)
class ChartRow:
    """Bars below a name, which is indented by `depth`."""

    name: str
    spans: Sequence[RowSpan]
    depth: int = 0


def draw(chart: Chart) -> Markup:
    """Return a chart as a figure with title, summary and legend."""
    keys = [(series.name, f"c{series.color}" + " dashed" * series.dashed) for series in chart.series]
    return _figure(chart.title, chart.summary, keys if len(keys) > 1 else (), _plot(chart), unit=chart.y.label)


def draw_rows(
    title: str, axis: Axis, rows: Sequence[ChartRow], *, summary: str = "", legend: Sequence[tuple[str, int]] = ()
) -> Markup:
    """Return rows of bars over one axis: a waterfall, or effects with their intervals. `legend` is (name, color)."""
    scale = axis.scale((end for row in rows for span in row.spans for end in (span.low, span.high)), 4)
    height = _ROW * len(rows) + 4
    parts = list(_x_axis(axis, scale, height))
    for index, row in enumerate(rows):
        name = row.name if len(row.name) <= _MAX_NAME else row.name[: _MAX_NAME - 1] + "…"
        indent = min(12 * row.depth, _NARROW // 4)
        parts.append(tag("text", name, tag("title", row.name), x=indent, y=_ROW * index + 14, class_="label"))
        parts += [part for span in row.spans for part in _span(span, scale, _ROW * index + 19)]
    plot = tag("svg", parts, height=height, role="img", aria_label=title)
    return _figure(title, summary, [(name, f"c{color}") for name, color in legend], plot, kind="plot rows")


def draw_heat_map(
    title: str,
    columns: Sequence[str],
    rows: Sequence[tuple[str, Sequence[float | None]]],
    *,
    summary: str = "",
) -> Markup:
    """Return values as cells that are the darker the higher they are; None is an empty cell."""
    known = [value for _, values in rows for value in values if value is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    width, bottom = 100 / max(len(columns), 1), _ROW * len(rows)
    parts = [
        tag("text", column, x=_at((index + 0.5) * width / 100), y=bottom + 16, text_anchor="middle", class_="tick")
        for index, column in enumerate(columns)
    ]
    for line, (name, values) in enumerate(rows):
        parts.append(tag("text", name, x=-8, y=_ROW * line + 22, text_anchor="end", class_="tick"))
        for index, value in enumerate(values):
            if value is None:
                continue
            shade = 0.08 + 0.42 * ((value - low) / (high - low) if high > low else 1.0)
            tip = tag("title", f"{name}, {columns[index]}: {number(value)}")
            cell = tag(
                "rect",
                tip,
                x=_at(index * width / 100),
                y=_ROW * line + 1,
                width=f"{width:.2f}%",
                height=_ROW - 2,
                class_="cell c0",
                fill_opacity=shade,
            )
            parts.append(cell)
            middle = _at((index + 0.5) * width / 100)
            parts.append(tag("text", number(value), x=middle, y=_ROW * line + 22, text_anchor="middle", class_="value"))
    plot = tag("svg", parts, height=bottom, role="img", aria_label=title)
    return _figure(title, summary, (), plot, kind="plot heat")


def svg_file(charts: Sequence[Chart]) -> str:
    """Return charts, one below the other, as an SVG file."""
    width, left, gap = 900, 64, 92
    parts = [tag("style", Markup(stylesheet())), tag("rect", width="100%", height="100%", class_="paper")]  # noqa: S704 the package's own file
    for index, chart in enumerate(charts):
        top = index * (_HEIGHT + gap) + 48
        parts.append(tag("text", chart.title, x=left, y=top - 28, class_="title"))
        parts.append(tag("text", chart.y.label, x=left, y=top - 10, class_="tick"))
        for place, series in enumerate(reversed(chart.series) if len(chart.series) > 1 else ()):
            x = width - 24 - 110 * (place + 1)
            parts.append(tag("rect", x=x, y=top - 33, width=14, height=4, class_=f"bar c{series.color}"))
            parts.append(tag("text", series.name, x=x + 20, y=top - 28, class_="tick"))
        parts.append(tag("svg", _plot(chart), x=left, y=top, width=width - left - 24, height=_HEIGHT))
    height = len(charts) * (_HEIGHT + gap)
    size = f'xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    return f'<svg {size} role="img">{"".join(parts)}</svg>\n'


def _figure(
    title: str, summary: str, keys: Sequence[tuple[str, str]], plot: Markup, *, unit: str = "", kind: str = "plot"
) -> Markup:
    legend = [tag("li", tag("span", class_=f"swatch {color}"), name) for name, color in keys]
    return tag(
        "figure",
        tag("figcaption", title),
        tag("p", summary, class_="summary") if summary else "",
        tag("ul", legend, class_="legend") if legend else "",
        tag("p", unit, class_="unit") if unit else "",
        tag("div", plot, class_=kind),
    )


def _plot(chart: Chart) -> Markup:
    """Return the area within the axes; the texts of the axes are outside of it."""
    points = [point for series in chart.series for point in series.points]
    across = [place for point in points for place in (point.x, point.x if point.x0 is None else point.x0)]
    filled = any(series.kind in ("bars", "area") for series in chart.series) and not chart.y.log
    heights = [end for point in points for end in (point.y, point.low, point.high) if end is not None]
    heights += [mark.y for mark in chart.marks if mark.y is not None]
    x = chart.x.scale(across, 5)
    y = chart.y.scale([*heights, 0.0] if filled else heights, 5)
    parts = [*_band(chart, x), *_x_axis(chart.x, x, _HEIGHT), *_y_axis(chart.y, y)]
    for series in chart.series:
        group = f"c{series.color}" + " dashed" * series.dashed
        parts.append(tag("g", _series(series, chart, x, y), class_=group))
    parts += _marks(chart, x, y)
    parts += _stops(chart, x)
    return tag("svg", parts, height=_HEIGHT, role="img", aria_label=chart.title)


def _at(share: float) -> str:
    return f"{100 * share:.2f}%"


def _down(y: Scale, value: float) -> float:
    return round(_HEIGHT * (1 - y.share(value)), 1)


def _band(chart: Chart, x: Scale) -> Iterator[Markup]:
    if chart.band is None:
        return
    low, high, text = chart.band
    left, right = x.share(low), x.share(high)
    yield tag("rect", x=_at(left), y=0, width=_at(right - left), height=_HEIGHT, class_="band")
    yield tag("text", text, x=_at(left), dx=4, y=_HEIGHT - 8, class_="mark")


def _x_axis(axis: Axis, scale: Scale, height: int) -> Iterator[Markup]:
    texts = [axis.text(tick) for tick in scale.ticks]
    widest = max(map(len, texts), default=0) * _CHARACTER + 6
    stride = 1 if axis.log else ceil(widest * (len(texts) - 1) / _NARROW) or 1
    free = float("-inf")
    for index, (tick, text) in enumerate(zip(scale.ticks, texts, strict=True)):
        at, room = scale.share(tick), len(text) * _CHARACTER / 2
        yield tag("line", x1=_at(at), x2=_at(at), y1=0, y2=height, class_="grid")
        if index % stride == 0 and at * _NARROW - room >= free:
            yield tag("text", text, x=_at(at), y=height + 17, text_anchor="middle", class_="tick")
            free = at * _NARROW + room + 6
    if axis.label:
        yield tag("text", axis.label, x="50%", y=height + 36, text_anchor="middle", class_="tick")


def _y_axis(axis: Axis, scale: Scale) -> Iterator[Markup]:
    for tick in scale.ticks:
        at = _down(scale, tick)
        yield tag("line", x1=0, x2="100%", y1=at, y2=at, class_="grid")
        yield tag("text", axis.text(tick), x=-8, y=at + 4, text_anchor="end", class_="tick")


def _series(series: ChartSeries, chart: Chart, x: Scale, y: Scale) -> Iterator[Markup]:
    usable = [point for point in series.points if x.shows(point.x) and y.shows(point.y)]
    if series.kind in _LINES:
        yield _stretched(_pieces(series, x, y))
    if series.kind in _BARS:
        yield _stretched([_bars(usable, x, y)])
        return
    for point in usable:
        if point.low is not None and point.high is not None and isfinite(point.low) and isfinite(point.high):
            at = _at(x.share(point.x))
            yield tag("line", x1=at, x2=at, y1=_down(y, point.low), y2=_down(y, point.high), class_="interval")
    if series.kind in _DOTS:
        yield from _dots(series, usable, chart, x, y)


def _stretched(shapes: Iterable[Markup]) -> Markup:
    """Return shapes whose x goes from 0 to `_ACROSS`, stretched over the area."""
    size = {"viewBox": f"0 0 {_ACROSS} {_HEIGHT}", "preserveAspectRatio": "none"}
    return tag("svg", shapes, width="100%", height=_HEIGHT, **size)


def _pieces(series: ChartSeries, x: Scale, y: Scale) -> Iterator[Markup]:
    """Yield the pieces of a line between its gaps."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for point in series.points:
        if not (x.shows(point.x) and y.shows(point.y)):
            pieces.append([])
            continue
        place = (round(_ACROSS * x.share(point.x), 1), _down(y, point.y))
        if series.kind == "steps" and pieces[-1] and pieces[-1][-1][1] != place[1]:
            pieces[-1].append((place[0], pieces[-1][-1][1]))
        pieces[-1].append(place)
    for piece in filter(None, pieces):
        if series.kind == "area":
            piece = [(piece[0][0], _HEIGHT), *piece, (piece[-1][0], _HEIGHT)]
        shape = "polygon" if series.kind == "area" else "polyline"
        style = "area" if series.kind == "area" else "line fine" if len(piece) > _MAX_BOLD else "line"
        yield tag(shape, class_=style, points=" ".join(f"{across:g},{down:g}" for across, down in piece))


def _bars(points: Sequence[ChartPoint], x: Scale, y: Scale) -> Markup:
    path = []
    for point in points:
        left, right = (_ACROSS * x.share(end) for end in (point.x if point.x0 is None else point.x0, point.x))
        width = max(right - left - min(1.2, (right - left) / 5), 1.0)
        top, bottom = _down(y, point.y), _down(y, max(point.low or 0.0, y.low))
        path.append(f"M{left:.1f} {bottom:g}V{top:g}h{width:.1f}V{bottom:g}z")
    return tag("path", d="".join(path), class_="bar")


def _dots(series: ChartSeries, points: Sequence[ChartPoint], chart: Chart, x: Scale, y: Scale) -> Iterator[Markup]:
    labelled = (float("-inf"), 0.0)
    for point in points:
        at, down = x.share(point.x), _down(y, point.y)
        head = point.note or f"{chart.x.label}: {chart.x.text(point.x)}"
        tip = tag("title", f"{head}\n{series.name}: {_described(point, chart.y)}")
        yield tag("circle", tip, cx=_at(at), cy=down, r=4.5, class_="dot")
        if point.label and max(abs(at * _NARROW - labelled[0]), abs(down - labelled[1])) > 22:
            yield tag("text", point.label, x=_at(at), dx=6, y=down - 8, class_="mark")
            labelled = (at * _NARROW, down)


def _described(point: ChartPoint, axis: Axis) -> str:
    if point.low is None:
        return axis.text(point.y)
    if point.high is None:  # a part of a stack
        return axis.text(point.y - point.low)
    return f"{axis.text(point.y)} ({axis.text(point.low)} to {axis.text(point.high)})"


def _marks(chart: Chart, x: Scale, y: Scale) -> Iterator[Markup]:
    """Yield the marks. Each text is in the first row where it overlaps no other one."""
    rows: list[list[tuple[float, float]]] = []
    for mark in chart.marks:
        if mark.y is not None:
            at = _down(y, mark.y)
            yield tag("line", x1=0, x2="100%", y1=at, y2=at, class_="rule")
            yield tag("text", mark.text, x="100%", dx=-4, y=at - 5, text_anchor="end", class_="mark")
        if mark.x is None or not x.low <= mark.x <= x.high:
            continue
        share = x.share(mark.x)
        yield tag("line", x1=_at(share), x2=_at(share), y1=0, y2=_HEIGHT, class_="rule")
        width, place = len(mark.text) * _CHARACTER, share * _NARROW
        mirrored = place + 4 + width > _NARROW
        start = place - 4 - width if mirrored else place + 4
        row = next((row for row in rows if all(start + width + 6 < low or start > high + 6 for low, high in row)), None)
        if row is None:
            row = []
            rows.append(row)
        row.append((start, start + width))
        yield tag("text", mark.text, x=_at(share), dx=-4 if mirrored else 4, y=12 + 15 * rows.index(row),
                  text_anchor="end" if mirrored else "start", class_="mark")  # fmt: skip


def _stops(chart: Chart, x: Scale) -> Iterator[Markup]:
    """Yield places across the chart whose tooltips have the values of all lines and bars there."""
    notes: dict[float, list[tuple[ChartPoint, str]]] = {}
    for series in chart.series:
        for point in series.points if series.kind not in _DOTS and not series.dashed else ():
            if x.shows(point.x) and isfinite(point.y):
                middle = point.x if point.x0 is None else (point.x + point.x0) / 2
                notes.setdefault(middle, []).append((point, f"{series.name}: {_described(point, chart.y)}"))
    places = sorted(notes)
    places = places[:: -(-len(places) // _MAX_STOPS) or 1]
    shares = [x.share(place) for place in places]
    for index, place in enumerate(places):
        left = (shares[index - 1] + shares[index]) / 2 if index else 0.0
        right = (shares[index] + shares[index + 1]) / 2 if index + 1 < len(shares) else 1.0
        head = notes[place][0][0].note or f"{chart.x.label}: {chart.x.text(place)}"
        tip = tag("title", "\n".join([head, *(text for _, text in notes[place])]))
        yield tag("rect", tip, x=_at(left), y=0, width=_at(right - left), height=_HEIGHT, class_="stop")


def _span(span: RowSpan, scale: Scale, top: float) -> Iterator[Markup]:
    left, right = scale.share(span.low), scale.share(span.high)
    tip = tag("title", span.tip)
    color = f"c{span.color}"
    if span.dot is None:
        yield tag("rect", tip, x=_at(left), y=top, width=_at(right - left), height=_BAR, class_=f"span {color}")
        return
    middle = top + _BAR / 2
    yield tag("line", x1=_at(left), x2=_at(right), y1=middle, y2=middle, class_=f"interval {color}")
    yield tag("circle", tip, cx=_at(scale.share(span.dot)), cy=middle, r=4.5, class_=f"dot {color}")
