"""Charts: what is drawn where, with tooltips, at the width of a phone."""

import itertools
import math
import re
from xml.etree import ElementTree as ET

import pytest

from conch.base.report.axis import Axis, seconds
from conch.base.report.chart import (
    Chart,
    ChartMark,
    ChartPoint,
    ChartRow,
    ChartSeries,
    RowSpan,
    draw,
    draw_heat_map,
    draw_rows,
    svg_file,
)

X, Y = Axis("load", tight=True), Axis("latency", seconds)


def line(*values: float, **more: str) -> Chart:
    """Return a chart of a line with a value at 0, 1, 2, …"""
    points = [ChartPoint(place, value) for place, value in enumerate(values)]
    return Chart("a < b", X, Y, [ChartSeries("P99", points, **more)])  # type: ignore[arg-type]


def test_a_line_has_gaps_where_the_value_is_unknown() -> None:
    drawn = draw(line(1.0, 2.0, math.nan, 3.0))
    assert drawn.count("<polyline") == 2
    assert "a &lt; b" in drawn
    assert "nan" not in drawn


def test_steps_are_constant_between_points() -> None:
    (points,) = re.findall(r'points="([^"]*)"', draw(line(1.0, 2.0, kind="steps")))
    (_, first), (corner, same), (end, _) = (place.split(",") for place in points.split())
    assert (first, corner) == (same, end)


def test_places_across_have_the_values_of_all_lines() -> None:
    chart = Chart(
        "t", X, Y, [ChartSeries("A", [ChartPoint(1, 0.1), ChartPoint(3, 0.3)]), ChartSeries("B", [ChartPoint(1, 0.2)])]
    )
    tips = re.findall(r'class="stop"><title>([^<]*)<', draw(chart))
    assert tips == ["load: 1\nA: 100 ms\nB: 200 ms", "load: 3\nA: 300 ms"]
    assert draw(line(*range(1000))).count('class="stop"') <= 60


def test_dots_have_their_interval_and_their_label() -> None:
    point = ChartPoint(1, 0.2, 0.1, 0.3, note="level 1", label="1")
    drawn = draw(Chart("t", X, Y, [ChartSeries("P50", [point, ChartPoint(2, 0.4)], "dots")]))
    assert "<title>level 1\nP50: 200 ms (100 ms to 300 ms)</title>" in drawn
    assert drawn.count('class="interval"') == 1
    assert drawn.count("<circle") == 2


def test_bars_of_a_stack_begin_where_the_lower_ones_end() -> None:
    series = [
        ChartSeries("queue", [ChartPoint(1, 0.2, low=0.0, x0=0)], "bars"),
        ChartSeries("compute", [ChartPoint(1, 0.5, low=0.2, x0=0)], "bars", 1),
    ]
    drawn = draw(Chart("t", X, Y, series))
    (lower, upper) = re.findall(r' d="M[\d.]+ ([\d.]+)V([\d.]+)h', drawn)
    assert lower[1] == upper[0]
    assert "compute: 300 ms" in drawn


def test_marks_that_are_close_have_their_texts_in_rows() -> None:
    marks = [ChartMark(f"P{name} 10 ms", x=1 + place / 100) for place, name in enumerate((50, 90, 99))]
    chart = Chart("t", X, Y, line(0.1, 0.2, 0.3).series, marks=[*marks, ChartMark("target", y=0.2)])
    rows = re.findall(r'y="(\d+)" text-anchor="start" class="mark">P', draw(chart))
    assert rows == ["12", "27", "42"]
    assert "target" in draw(chart)


@pytest.mark.parametrize("end", [1.0, 7.0, 1e5, 3e7])
def test_labels_do_not_overlap_on_a_phone(end: float) -> None:
    chart = Chart(
        "t", Axis("x", lambda value: f"{value:,.3f}"), Y, [ChartSeries("a", [ChartPoint(0, 1), ChartPoint(end, 1)])]
    )
    places = re.findall(r'<text x="([\d.]+)%"[^>]*text-anchor="middle" class="tick">([\d.,]+)<', draw(chart))
    assert places
    ends = [(float(at) * 2.6 - len(text) * 3.5, float(at) * 2.6 + len(text) * 3.5) for at, text in places]
    assert all(right < left for (_, right), (left, _) in itertools.pairwise(ends))


def test_rows_of_bars() -> None:
    rows = [
        ChartRow("<model>", [RowSpan(0, 50, 1, "queue"), RowSpan(50, 100, 2, "infer")]),
        ChartRow("change", [RowSpan(20, 40, 5, "slower", dot=30)], depth=1),
    ]
    drawn = draw_rows("Waterfall", Axis("time", tight=True), rows, legend=[("queue", 1)])
    spans = re.findall(r'<rect x="([\d.]+)%" y="[\d.]+" width="([\d.]+)%"', drawn)
    assert spans == [("0.00", "50.00"), ("50.00", "50.00")]
    assert "&lt;model&gt;" in drawn
    assert drawn.count("<circle") == 1


def test_a_heat_map_is_darkest_where_the_value_is_highest() -> None:
    drawn = draw_heat_map("t", ["1", "8"], [("one", [50.0, 100.0]), ("two", [None, 150.0])])
    shades = re.findall(r'fill-opacity="([\d.]+)"', drawn)
    assert len(shades) == 3
    assert max(shades) == shades[2]
    assert "<title>two, 8: 150</title>" in drawn
    assert "<rect" not in draw_heat_map("t", ["1"], [("one", [None])])


@pytest.mark.parametrize("kind", ["line", "steps", "area", "bars", "dots", "dotted line"])
@pytest.mark.parametrize("values", [(), (math.nan,), (0.0,), (1.0, 1.0)])
def test_any_values_can_be_drawn(kind: str, values: tuple[float, ...]) -> None:
    text = svg_file([line(*values, kind=kind)])
    ET.fromstring(text)
    assert "nan" not in text
