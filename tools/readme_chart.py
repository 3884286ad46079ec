"""Writes the chart of the README, docs/images/comparison.svg, from benchmarks/README.md; `make docs` runs it."""

import re
from pathlib import Path

from markupsafe import Markup

from conch.base.report.page import tag

ROOT = Path(__file__).parent.parent
_TABLES = ROOT / "benchmarks" / "README.md"
_CHART = ROOT / "docs" / "images" / "comparison.svg"

# Workload of the tables → its name in the chart.
_ROWS = {
    "identity-json-16": "HTTP, JSON: requests/s",
    "identity-binary-16": "HTTP, binary: requests/s",
    "identity-grpc-16": "gRPC: requests/s",
    "identity-stream-100": "gRPC streams: messages/s",
    "ensemble-binary-16": "ensembles: requests/s",
    "sequence-binary-32": "sequences: requests/s",
    "image-binary-4": "images of 4.9 MB: bytes/s",
    "detect-binary-4": "detection pipeline: images/s",
    "densenet-binary-4": "DenseNet-121: images/s",
}
_NAME, _UNIT, _ROW, _TOP, _WIDTH = 200, 100, 26, 30, 560  # pixels
_OTHER_UNIT = 14
_STYLE = """text{font:13px system-ui,sans-serif;fill:#24292f}.bar{fill:#0a8f82}.worse{fill:#b7791f}
.one{stroke:#57606a;stroke-dasharray:3 3}@media(prefers-color-scheme:dark){text{fill:#e6edf3}.one{stroke:#9198a1}}"""


def ratios(tables: str) -> dict[str, float]:
    """Return, by workload, how many times the figure of Triton that of Conch is."""
    rows = re.findall(
        r"^\| ([\w-]+) \| (?:rate|bandwidth) [^|]+\| higher \|[^|]+\|[^|]+\| ([\d.]+) \(", tables, re.MULTILINE
    )
    return {workload: float(ratio) for workload, ratio in rows}


def quick_starts(tables: str) -> dict[str, float]:
    """Return, by framework, how many times its rate with 16 connections Conch serves the quick start of it.

    Of several tables the first counts.
    """
    section = tables.partition("## Quick starts")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([\w ]+): .*\n\| \| \d+ \| 16 \|.*\| ([\d.]+) \(", section, re.MULTILINE)
    return {name: float(ratio) for name, ratio in reversed(rows)}


def draw(values: dict[str, float], others: dict[str, float]) -> str:
    """Return the chart: a bar for each workload, a line at 1, which is Triton, and bars against `others`."""
    end = _TOP + _ROW * len(_ROWS) + 8
    height = end + _TOP + _ROW * len(others)
    unit_x = _NAME + _UNIT
    parts = [
        tag("style", Markup(_STYLE)),
        tag("line", x1=unit_x, x2=unit_x, y1=_TOP - 8, y2=end, class_="one"),
        tag("text", "Triton 2.51 = 1", x=unit_x, y=16, text_anchor="middle"),
    ]
    for index, (workload, name) in enumerate(_ROWS.items()):
        y = _TOP + _ROW * index
        length = values[workload] * _UNIT
        better = "bar" if values[workload] >= 1 else "worse"
        parts += [
            tag("text", name, x=_NAME - 8, y=y + 13, text_anchor="end"),
            tag("rect", x=_NAME, y=y, width=f"{length:.0f}", height=_ROW - 8, rx=2, class_=better),
            tag("text", f"{values[workload]:.1f}", x=f"{_NAME + length + 6:.0f}", y=y + 13),
        ]
    parts.append(tag("text", "Python functions, another scale: requests/s relative to", x=_NAME, y=end + 16))
    for index, (name, ratio) in enumerate(sorted(others.items())):
        y, length = end + _TOP - 4 + _ROW * index, ratio * _OTHER_UNIT
        bar = tag("rect", x=_NAME, y=y, width=f"{length:.0f}", height=_ROW - 8, rx=2, class_="bar")
        texts = (
            tag("text", name, x=_NAME - 8, y=y + 13, text_anchor="end"),
            tag("text", f"{ratio:.1f}", x=f"{_NAME + length + 6:.0f}", y=y + 13),
        )
        parts.append(tag("g", bar, *texts))
    label = "Rates of Conch relative to Triton 2.51, LitServe, Ray Serve and BentoML on the same two cores"
    view = f"0 0 {_WIDTH} {height}"
    xmlns = "http://www.w3.org/2000/svg"
    chart = tag("svg", *parts, xmlns=xmlns, role="img", aria_label=label, width=_WIDTH, height=height, viewBox=view)
    return f"{chart}\n"


if __name__ == "__main__":
    tables = _TABLES.read_text("utf-8")
    _CHART.write_text(draw(ratios(tables), quick_starts(tables)), "utf-8")
