"""The samples of a fleet as SVG: replicas, ratio and P99 over time. Pure, without scripts."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from conch.operate.fleet.report.journal import FleetSample

_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP = 860, 130, 56, 34, 46
_COLOURS = {"desired": "#9a6700", "ready": "#0969da", "clients": "#8c959f", "ratio": "#8250df", "p50": "#57ab5a"}
_COLOURS["p99"] = "#cf222e"
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#57606a}.title{font-weight:600;fill:#24292f}"
    ".axis{stroke:#d0d7de;stroke-width:1}.target{stroke:#57606a;stroke-dasharray:4 4}"
    "polyline{fill:none;stroke-width:2;stroke-linejoin:round}"
)


@dataclass(frozen=True, slots=True)
class PlotLine:
    """A line of a panel. `steps`: constant between samples."""

    name: str
    values: Sequence[float | None]
    colour: str
    steps: bool = False


@dataclass(frozen=True, slots=True)
class PlotPanel:
    """Lines over a common time axis; `target` is a horizontal line."""

    title: str
    lines: Sequence[PlotLine]
    unit: str = ""
    target: float | None = None

    @property
    def top(self) -> float:
        """The value of the upper end of the axis: 1, 2, 4 or 5 times a power of ten."""
        values = [value for line in self.lines for value in line.values if value is not None]
        highest = max([*values, self.target or 0.0, 1e-3])
        power = 10.0 ** (len(f"{int(highest)}") - 1) if highest >= 1 else 10.0**-3
        while True:
            for factor in (1.0, 2.0, 4.0, 5.0):
                if factor * power >= highest:
                    return factor * power
            power *= 10


def fleet_panels(samples: Sequence[FleetSample], metric: str, target: float) -> list[PlotPanel]:
    """Return the panels of a fleet."""

    def line(name: str, value: Callable[[FleetSample], float | None], steps: bool = False) -> PlotLine:
        return PlotLine(name, [value(each) for each in samples], _COLOURS[name], steps)

    return [
        PlotPanel("Replicas", [line("desired", lambda s: s.desired, True), line("ready", lambda s: s.ready, True)]),
        PlotPanel(f"{metric}, average of the replicas", [line("ratio", lambda s: s.ratio, True)], target=target),
        PlotPanel("Latency of the clients", [line("p50", lambda s: s.p50_s), line("p99", lambda s: s.p99_s)], " s"),
        PlotPanel("Clients", [line("clients", lambda s: s.clients, True)]),
    ]


def to_svg(times: Sequence[float], panels: Sequence[PlotPanel]) -> str:
    """Return panels, one below the other, as an SVG document. `times` are seconds."""
    end = max(times, default=1.0) or 1.0
    height = _TOP + len(panels) * (_HEIGHT + _GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH + _LEFT + 20} {height}" role="img">',
        f"<style>{_STYLE}</style>",
        f'<rect width="{_WIDTH + _LEFT + 20}" height="{height}" fill="#fff"/>',
    ]
    for number, panel in enumerate(panels):
        parts += _panel(panel, times, end, _TOP + number * (_HEIGHT + _GAP))
    return "\n".join([*parts, "</svg>\n"])


def _panel(panel: PlotPanel, times: Sequence[float], end: float, y0: float) -> Iterator[str]:
    top = panel.top
    bottom, right = y0 + _HEIGHT, _LEFT + _WIDTH
    yield f'<text class="title" x="{_LEFT}" y="{y0 - 10}">{escape(panel.title)}</text>'
    for position, each in enumerate(panel.lines):
        left = right - 90 * (len(panel.lines) - position)
        yield f'<rect x="{left}" y="{y0 - 19}" width="10" height="10" fill="{each.colour}"/>'
        yield f'<text x="{left + 15}" y="{y0 - 10}">{escape(each.name)}</text>'
    for value in (0.0, top / 2, top):
        y = bottom - value / top * _HEIGHT
        yield f'<line class="axis" x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:g}{panel.unit}</text>'
    if panel.target is not None:
        y = bottom - panel.target / top * _HEIGHT
        yield f'<line class="target" x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
    for tick in range(0, int(end) + 1, _tick(end)):
        x = _LEFT + tick / end * _WIDTH
        yield f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{tick} s</text>'
    for each in panel.lines:
        for points in _points(each, times, end, top, bottom):
            yield f'<polyline stroke="{each.colour}" points="{points}"/>'


def _points(line: PlotLine, times: Sequence[float], end: float, top: float, bottom: float) -> Iterator[str]:
    """Yield the points of each piece of a line: it has gaps where the value is unknown."""
    piece: list[str] = []
    last = None
    for at_s, value in zip(times, line.values, strict=True):
        if value is None:
            if piece:
                yield " ".join(piece)
            piece, last = [], None
            continue
        x, y = _LEFT + at_s / end * _WIDTH, bottom - value / top * _HEIGHT
        if line.steps and last is not None and last != y:
            piece.append(f"{x:.1f},{last:.1f}")
        piece.append(f"{x:.1f},{y:.1f}")
        last = y
    if piece:
        yield " ".join(piece)


def _tick(end: float) -> int:
    return next((each for each in (5, 10, 20, 30, 60, 120, 300, 600) if end / each <= 12), 3600)
