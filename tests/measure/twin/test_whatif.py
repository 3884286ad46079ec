"""`conch whatif` on files, and on a running server."""

import json
from pathlib import Path

import pytest

from conch.measure.twin.command import whatif
from tests.unit.measure.twin.recorded import MS, batching, document, log_of, poisson, run, traffic, work

MODEL = document("detector", **batching(1000))


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log") / "server.events"
    truth = run(MODEL, traffic(poisson(200, 300)), work(lambda size: MS * (2 + size)))
    path.write_bytes(log_of(truth, MODEL).to_bytes())
    return path


def test_a_forecast_is_printed_as_a_table(events: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        whatif(
            ["detector", "--file", str(events), "--instances", "2", "--delay", "500us", "--rate", "2x", "--runs", "8"]
        )
        == 0
    )
    text = capsys.readouterr().out
    assert text.startswith("detector: ")
    assert all(word in text for word in ("P50", "P95", "P99", "throughput", "instances busy", "90 % interval"))


def test_json_has_the_change_and_nanoseconds(events: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--preferred", "2,4", "--max-batch-size", "4", "--concurrency", "3", "--json", "--runs", "8"]
    assert whatif(["detector", "--file", str(events), *arguments]) == 0
    forecast = json.loads(capsys.readouterr().out)
    assert forecast["change"] == {"max_batch_size": 4, "preferred": [2, 4]}
    assert forecast["clients"] == 3
    assert forecast["p99"]["low"] <= forecast["p99"]["value"] <= forecast["p99"]["high"]
    assert forecast["p99"]["value"] > MS


def test_arrivals_of_a_trace(events: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "arrivals.txt"
    trace.write_text("\n".join(str(number * 0.01) for number in range(500)))
    assert whatif(["detector", "--file", str(events), "--trace", str(trace), "--json", "--runs", "8"]) == 0
    assert json.loads(capsys.readouterr().out)["throughput"]["value"] == pytest.approx(100, rel=0.05)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["other"], "the log has no configuration of model 'other'; it knows detector"),
        (["detector", "--arrivals", "constant"], "--arrivals is for a number of requests a second: add --rate"),
        (["detector", "--stage", "resize"], "'detector' has no step 'resize'"),
        (["detector", "--trace", "/absent"], "--trace: "),
    ],
)
def test_errors_name_what_would_be_right(
    events: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert whatif([*arguments, "--file", str(events)]) == 1
    assert capsys.readouterr().err.startswith(f"conch whatif: {message}")


@pytest.mark.parametrize("argument", ["--rate=-1", "--rate=x", "--instances=0", "--arrivals=often"])
def test_wrong_flags(argument: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        whatif(["detector", argument])
    assert stopped.value.code == 2


def test_other_files_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("notes")
    assert whatif(["detector", "--file", str(path)]) == 1
    assert "not an event log" in capsys.readouterr().err
