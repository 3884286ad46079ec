"""The chart of the README shows what the tables of the benchmarks say."""

from xml.etree import ElementTree as ET

from tools.readme_chart import ROOT, draw, quick_starts, ratios


def test_the_chart_is_of_the_tables() -> None:
    tables = (ROOT / "benchmarks" / "README.md").read_text()
    chart = draw(ratios(tables), quick_starts(tables))
    assert (ROOT / "docs" / "images" / "comparison.svg").read_text() == chart


def test_bars_are_as_long_as_their_ratios() -> None:
    values = ratios((ROOT / "benchmarks" / "README.md").read_text())
    root = ET.fromstring(
        draw({**values, "identity-json-16": 2.0, "identity-binary-16": 1.0, "densenet-binary-4": 0.5}, {})
    )
    bars = root.findall("{*}rect")
    assert float(bars[0].attrib["width"]) == 2 * float(bars[1].attrib["width"]) == 4 * float(bars[-1].attrib["width"])
    assert (bars[0].get("class"), bars[-1].get("class")) == ("bar", "worse")
    # The line of Triton stands where a ratio of 1 ends.
    [line] = root.findall("{*}line")
    assert float(line.attrib["x1"]) == float(bars[1].attrib["x"]) + float(bars[1].attrib["width"])


def test_the_first_table_of_a_framework_counts() -> None:
    row = "| A B: f | 1 | 1 | 2 | 3 | 4 | 5 | 7.0 (1 to 9) | 6 |\n| | 1 | 16 | 2 | 3 | 4 | 5 | 8.5 (1 to 9) | 6 |\n"
    text = f"# X\n## Quick starts\n{row}\n{row.replace('8.5', '3.0')}\n## Y\n{row.replace('A B', 'C')}"
    assert quick_starts(text) == {"A B": 8.5}


def test_ratios_are_of_rates_only() -> None:
    rate = "| a-1 | rate answers/s | higher | 10 | 20 | 2.00 (1.9–2.1) |"
    rows = f"{rate}\n| b-1 | median latency µs | lower | 2 | 1 | 0.5 (0.4–0.6) |"
    assert ratios(rows) == {"a-1": 2.0}
