"""`conch record` and `conch replay`: incidents of a simulated model, and of real servers."""

import json
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from conch.domain.events.bundle import Bundle
from conch.domain.events.log import EventLog
from conch.domain.scheduling.batching import BatchRules
from conch.measure.incidents.record import record
from conch.measure.incidents.replay import replay
from tests.server.clients import Client
from tests.support.models import tensor, write_config, write_identity
from tests.support.server_process import ConchProcess
from tests.support.simulated_log import MS, US, Arrival, SimulatedModel, serve

CONFIG = {
    "name": "detector",
    "backend": "onnxruntime",
    "max_batch_size": 4,
    "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [2]}],
    "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [2]}],
    "instance_group": [{"count": 1, "kind": "KIND_CPU"}],
    "dynamic_batching": {"max_queue_delay_microseconds": 2000},
    "version_policy": {"latest": {"num_versions": 1}},
}
REQUESTS = 150


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a model that one instance is too few for."""
    random = np.random.default_rng(1)
    times = 10**9 + np.cumsum(random.exponential(4 * MS, REQUESTS)).astype(int)
    model = SimulatedModel(
        rules=BatchRules(4, frozenset({4}), 2000 * US, single=False, largest_preferred=4),
        compute=lambda start, batch: 8 * MS + len(batch) * MS + start % MS,
    )
    rows = serve(model, [Arrival(int(at)) for at in times])
    for row in rows.tables["requests"]:
        row["shape"] = "INPUT0 FP32 [1,2]"
    log = rows.log(server={"models": {"detector": CONFIG}, "cores": 2})
    path = tmp_path_factory.mktemp("bundle") / "x.conch.tar.zst"
    path.write_bytes(Bundle({"id": "x"}, (log,), models={"detector/1": {"config": CONFIG}}).to_bytes())
    return path


def replayed(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, object]:
    assert replay([*map(str, arguments), "--json"]) == 0
    (comparison,) = json.loads(capsys.readouterr().out)["models"]
    return comparison


def test_a_simulation_has_the_recorded_batches_in_the_recorded_order(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    comparison = replayed(capsys, bundle)
    assert comparison["same_sequence"] is True
    assert comparison["equal_batches"] == 1
    assert comparison["replayed"]["p99_s"] == pytest.approx(comparison["recorded"]["p99_s"], rel=0.01)
    assert comparison["recorded"]["requests"] == comparison["replayed"]["requests"] == REQUESTS


def test_another_world_has_other_latencies(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = replayed(capsys, bundle, "--instances", 3)
    assert more["replayed"]["p95_s"] < more["recorded"]["p95_s"]
    faster = replayed(capsys, bundle, "--speed", 2)
    assert faster["replayed"]["p95_s"] > faster["recorded"]["p95_s"]
    assert replay([str(bundle)]) == 0
    shown = capsys.readouterr().out
    assert "detector: the same batches in the same order: 100.0% of the recorded batches" in shown


def _assert_answered(comparison: dict[str, dict[str, object]]) -> None:
    """Check that a server answered; a generator that gets no processor for a second leaves out the last requests."""
    requests, failed = comparison["replayed"]["requests"], comparison["replayed"]["failed"]
    assert (REQUESTS // 2 < requests <= REQUESTS, failed) == (True, 0)


def test_a_stand_in_answers_every_request(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    comparison = replayed(capsys, bundle, "--on", "stand-in", "--instances", 2, "--speed", 2)
    _assert_answered(comparison)


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a model with two instances and a delay, whose executions take from 20 to 150 ms."""
    random = np.random.default_rng(3)
    times = 10**9 + np.cumsum(random.exponential(14 * MS, REQUESTS)).astype(int)
    model = SimulatedModel(
        instances=2,
        rules=BatchRules(4, frozenset({4}), 5000 * US, single=False, largest_preferred=4),
        compute=lambda _start, _batch: int(random.uniform(20, 150)) * MS,
    )
    rows = serve(model, [Arrival(int(at)) for at in times])
    for row in rows.tables["requests"]:
        row["shape"] = "INPUT0 FP32 [1,2]"
    config = {
        **CONFIG,
        "instance_group": [{"count": 2, "kind": "KIND_CPU"}],
        "dynamic_batching": {"max_queue_delay_microseconds": 5000},
    }
    log = rows.log(server={"models": {"detector": config}, "cores": 2})
    path = tmp_path_factory.mktemp("uneven") / "x.conch.tar.zst"
    path.write_bytes(Bundle({"id": "x"}, (log,), models={"detector/1": {"config": config}}).to_bytes())
    return path


def test_stand_ins_of_the_recorded_world_form_its_batches(uneven: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Executions end when the recorded ones did, also where the processes of the test were late before. With durations
    # that are drawn by batch size, an eighth of the batches is the same.
    comparison = replayed(capsys, uneven, "--on", "stand-in")
    _assert_answered(comparison)
    assert comparison["equal_batches"] > 0.5


def test_a_repository_answers_every_request(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = f"input [{tensor('INPUT0', 'FP32', 2)}] output [{tensor('OUTPUT0', 'FP32', 2)}]"
    write_config(tmp_path, "detector", f'backend: "identity" max_batch_size: 4 {tensors}')
    comparison = replayed(capsys, bundle, "--on", tmp_path, "--speed", 2)
    _assert_answered(comparison)


def test_requests_that_a_server_refuses_are_said(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = f"input [{tensor('OTHER', 'FP32', 2)}] output [{tensor('OUTPUT0', 'FP32', 2)}]"
    write_config(tmp_path, "detector", f'backend: "identity" max_batch_size: 4 {tensors}')
    assert replay([str(bundle), "--on", str(tmp_path), "--speed", "4"]) == 0
    assert "requests failed: " in capsys.readouterr().err


def test_mistakes_are_named(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").write_bytes(Bundle({}).to_bytes())
    for arguments, message in (
        ([tmp_path / "gone"], "cannot read"),
        ([__file__], "is not an incident bundle"),
        ([tmp_path / "empty"], "has no requests"),
        ([bundle, "--model", "gone"], "no request to model 'gone'"),
        ([bundle, "--on", "127.0.0.1:1", "--instances", 2], "--instances is for --on simulation and --on stand-in"),
        ([bundle, "--on", "127.0.0.1:1"], "connection refused"),
    ):
        assert replay([*map(str, arguments)]) == 1
        assert message in capsys.readouterr().err
    with pytest.raises(SystemExit):
        replay([str(bundle), "--speed", "0"])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    root = tmp_path_factory.mktemp("server")
    write_identity(root / "models", "m", "FP32", 2)
    with ConchProcess(root / "models", "--event-log-bytes=131072", log=root / "log") as running:
        yield running


def ask(server: ConchProcess, count: int) -> None:
    with Client(server, "http") as client:
        for _ in range(count):
            client.ask("m", {"INPUT0": np.array([1, 2], np.float32)})


def test_the_past_is_recorded(server: ConchProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask(server, 20)
    path = tmp_path / "x.conch.tar.zst"
    assert record([server.http, "-o", str(path), "--last", "10m"]) == 0
    assert "20 requests" in capsys.readouterr().out
    assert record([server.http, "-o", str(path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["file"], facts["requests"], facts["bytes"]) == (str(path), 20, path.stat().st_size)
    assert path.stat().st_mode & 0o777 == 0o600
    kept = Bundle.read(path)
    assert kept.manifest["reason"] == "request"
    assert kept.models["m/1"]["config"]["name"] == "m"
    assert len(kept.log.batches) == 20


def test_the_time_to_come_is_recorded_although_the_ring_is_small(
    server: ConchProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.conch.tar.zst"
    statuses: list[int] = []
    recording = Thread(target=lambda: statuses.append(record([server.http, "-o", str(path), "--duration", "2s"])))
    recording.start()
    before = _last(server)
    asked = 0
    while recording.is_alive():
        ask(server, 50)
        asked += 50
    recording.join()
    assert statuses == [0]
    kept = Bundle.read(path)
    numbers = np.sort(kept.log.requests["number"])
    assert numbers[-1] > before
    assert len(np.unique(numbers)) == len(numbers) <= asked


def _last(server: ConchProcess) -> int:
    from conch.measure.why.source import fetch_log

    log: EventLog = fetch_log(server.http, 60)
    return int(log.requests["number"].max(initial=0))


def test_a_file_that_cannot_be_written_is_an_error(
    server: ConchProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (tmp_path / "gone" / "x", Path("/dev/full")):  # the latter is a full disk
        assert record([server.http, "-o", str(path)]) == 1
        assert "cannot write" in capsys.readouterr().err
    assert record(["127.0.0.1:1", "-o", str(tmp_path / "x")]) == 1
    assert "connection refused" in capsys.readouterr().err
