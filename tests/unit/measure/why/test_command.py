import json
from pathlib import Path

import pytest

from conch.domain.events.bundle import Bundle
from conch.domain.events.log import EventLog
from conch.measure.why.command import why
from tests.support.simulated_log import MS, Arrival, SimulatedModel, serve

SECOND = 1000 * MS


def incident(**header: object) -> EventLog:
    """One image of 12,000 × 8,000 pixels among small ones, which takes 180 ms instead of 15."""
    model = SimulatedModel("preprocess", compute=lambda _start, batch: (180 if batch[0].bytes > 10**7 else 15) * MS)
    arrivals = [Arrival(SECOND + number * 20 * MS, 150_000) for number in range(1000)]
    rows = serve(model, [*arrivals, Arrival(11 * SECOND - MS, 288_000_000)])
    rows.add("ids", request=506, text="photo-7")
    return rows.log(wall_ns=1_800_000_000 * SECOND, **header)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("why") / "events"
    path.write_bytes(incident().to_bytes())
    return path


def test_a_percentile(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert why(["p99", "--file", str(log)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(
        "The slowest 1 % (11 requests, from 149 ms) take 172 ms on average, ordinary ones 15.1 ms"
    )
    assert 'of the difference, 90% waiting behind an unusually large request to "preprocess"' in lines[0]
    assert any(
        line.split() == ["behind", "a", "large", "request", "preprocess", "142", "ms", "0", "ns"] for line in lines
    )
    assert lines[-1] == "batch 2002 on preprocess_0: 1 request (#501), 288 MB of inputs, computed 180 ms, usually 15 ms"


@pytest.mark.parametrize("target", ["#506", "photo-7"])
def test_a_request(log: Path, capsys: pytest.CaptureFixture[str], target: str) -> None:
    assert why([target, "--file", str(log)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith('174 ms: 91% waiting behind an unusually large request to "preprocess" (159 ms)')
    assert lines[2] == "request #506 (photo-7), preprocess version 1, at 2027-01-15 07:59:50.084930 UTC"


def test_a_model_is_its_p99(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    why(["preprocess", "--file", str(log), "--json"])
    of_model = json.loads(capsys.readouterr().out)
    why(["p99", "--model", "preprocess", "--file", str(log), "--json"])
    assert json.loads(capsys.readouterr().out) == of_model
    assert of_model["percentile"]["causes"][0]["cause"] == "large"
    request = of_model["request"]
    parts = [part for span in request["spans"] for part in span["parts"]]
    assert sum(part["duration_ns"] for part in parts) == request["duration_ns"]
    assert sum(cause["duration_ns"] for cause in request["causes"]) == request["duration_ns"]


def test_the_page_refers_to_nothing_outside(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "why.html"
    assert why(["p99", "--file", str(log), "--html", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert "waiting behind an unusually large request" in text
    assert "behind a large request" in text
    assert "<svg" in text
    assert "http" not in text.replace("http-equiv", "").replace("http://www.w3.org", "")
    assert capsys.readouterr().out == ""
    assert why(["p99", "--file", str(log), "--html", str(tmp_path / "missing" / "x.html")]) == 1
    assert "conch why: cannot write" in capsys.readouterr().err


def test_a_log_that_lacks_rows_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "events"
    path.write_bytes(incident(overrun_before=3 * SECOND, lost={"requests": 812}).to_bytes())
    assert why(["p99", "--file", str(path)]) == 0
    said = capsys.readouterr().err
    assert said == "conch why: the event log begins at 07:59:42 UTC: it overwrote earlier rows (812 requests)\n"
    assert why(["unknown-id", "--file", str(path)]) == 1
    said = capsys.readouterr().err
    assert "no request 'unknown-id' in the event log: it holds 1001 requests; it may be one of the rows" in said
    assert "a percentile such as p99 or a model, such as 'preprocess'" in said


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "not an event log"),
        (b"conch events 99 2\n{}", "written by a newer version of Conch"),
        (EventLog().to_bytes(), "has 0 finished requests; a percentile needs 10 or more"),
        (None, "cannot read '"),
    ],
)
def test_what_cannot_be_answered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data: bytes | None, problem: str
) -> None:
    path = tmp_path / "events"
    if data is not None:
        path.write_bytes(data)
    assert why(["p99", "--file", str(path)]) == 1
    said = capsys.readouterr().err
    assert said.startswith("conch why: ")
    assert problem in said


def test_names_cannot_control_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = serve(SimulatedModel("\x1b[31m[red]"), [Arrival(SECOND * number) for number in range(1, 30)])
    rows.add("ids", request=3, text="\x07bell")
    path = tmp_path / "events"
    path.write_bytes(rows.log().to_bytes())
    assert why(["p99", "--file", str(path)]) == 0
    assert why(["#3", "--file", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "[red]" in shown
    assert not {"\x1b", "\x07"} & set(shown)


def test_a_bundle_whole_and_cut_short(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "incident.conch"
    data = Bundle({"reason": "p99"}, (incident(),)).to_bytes()
    path.write_bytes(data)
    assert why(["photo-7", "--file", str(path)]) == 0
    assert "behind an unusually large request" in capsys.readouterr().out
    path.write_bytes(data[: len(data) // 2])
    assert why(["p99", "--file", str(path)]) == 1
    assert "conch why: " in capsys.readouterr().err
