import json
from pathlib import Path

from benchmarks.harness.figures import ALONE, Figure, Result, Target
from benchmarks.harness.report import HEADINGS, markdown, rows, summary, write_json


def load_result(**changes: object) -> Result:
    values: dict[str, object] = {
        "work": "detect-binary-4",
        "figures": [
            Figure("rate", "answers/s", True, {"triton": [40, 50], "conch": [80, 100], "alone": [100, 100]}),
            Figure("median latency", "µs", False, {"triton": [1, 1], "conch": [1, 1], "alone": [1, 1]}),
            Figure("cpu", "µs/answer", False, {"triton": [2000, 2000], "conch": [1000, 1600], "alone": [1, 1]}),
            Figure("memory", "MB", False, {"triton": [500, 520], "conch": [250, 260], "alone": [99, 99]}),
        ],
        "targets": [Target("rate", 1.7), Target("rate", 0.95, beside=ALONE), Target("cpu", 0.6)],
    }
    return Result(**{**values, **changes})  # type: ignore[arg-type]


def start_result() -> Result:
    figures = [
        Figure("ready", "s", False, {"triton": [22.0], "conch": [2.2]}),
        Figure("memory", "MB", False, {"triton": [950], "conch": [500]}),
    ]
    return Result("start-50", figures, [Target("ready", 0.15), Target("memory", 0.35)])


def test_a_load_has_one_row_with_ratios_costs_and_verdicts() -> None:
    (row,) = rows(load_result())
    named = list(zip(HEADINGS, row, strict=True))
    assert named[:10] == [
        ("work", "detect-binary-4"),
        ("figure", "rate answers/s"),
        ("better", "higher"),
        ("Triton", "45"),
        ("Conch", "90"),
        ("ratio", "2.00 (2.00–2.00)"),
        ("reach", "≥ 1.7 yes"),
        ("alone", "100"),
        ("Conch ÷ alone", "0.90 (0.80–1.00)"),
        ("reach", "≥ 0.95 no"),
    ]
    assert row[10:] == ["2,000", "1,300", "0.65 (0.50–0.80)", "≤ 0.6 no", "510", "255"]


def test_cells_without_a_measurement_stay_empty() -> None:
    result = load_result(targets=[])
    for figure in result.figures:
        del figure.rounds[ALONE]
    (row,) = rows(result)
    assert row[6:10] == ["", "", "", ""]
    assert row[13] == ""


def test_one_server_alone_has_figures_and_no_verdict() -> None:
    result = load_result()
    for figure in result.figures:
        del figure.rounds["triton"]
    (row,) = rows(result)
    assert row[3:7] == ["–", "90", "–", "≥ 1.7 –"]


def test_a_start_has_a_row_for_each_figure() -> None:
    assert [[row[0], row[1], row[5], row[6]] for row in rows(start_result())] == [
        ["start-50", "ready s", "0.10 (0.10–0.10)", "≤ 0.15 yes"],
        ["start-50", "memory MB", "0.53 (0.53–0.53)", "≤ 0.35 no"],
    ]


def test_markdown_has_as_many_cells_in_every_line() -> None:
    broken = load_result(figures=[], error="ended with status 1")
    lines = markdown([load_result(), start_result(), broken]).splitlines()
    assert {line.count("|") for line in lines} == {len(HEADINGS) + 1}
    assert len(lines) == 2 + 1 + 2 + 1
    assert lines[-1].startswith("| detect-binary-4 | failed |")


def test_the_summary_names_what_is_not_reached() -> None:
    told = summary([load_result(), start_result(), load_result(figures=[], error="gone")])
    assert told.startswith("2 of 5 targets reached; not: ")
    assert told.partition("not: ")[2].split(", ") == [
        "detect-binary-4 rate ≥ 0.95 of alone",
        "detect-binary-4 cpu ≤ 0.6 of triton",
        "start-50 memory ≤ 0.35 of triton",
    ]


def test_the_file_has_every_round_the_machine_and_the_versions(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    write_json(file, [start_result()], {"cores": "2"}, {"conch": "0.1.0"})
    document = json.loads(file.read_text())
    assert (document["machine"], document["servers"]) == ({"cores": "2"}, {"conch": "0.1.0"})
    assert document["results"][0]["figures"][0]["rounds"] == {"triton": [22.0], "conch": [2.2]}
    assert document["results"][0]["targets"][0] == {"figure": "ready", "bound": 0.15, "beside": "triton"}
