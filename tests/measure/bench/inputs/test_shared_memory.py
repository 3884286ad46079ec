"""Tensors in system shared memory, with a real server over HTTP and gRPC; regions end with their process."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from conch.measure.bench.generator import ClosedLoop, LoadPlan, ScriptSource
from conch.measure.bench.input_settings import InputError, InputSettings
from conch.measure.bench.inputs import shared_memory
from conch.measure.bench.inputs.build import prepare_inputs
from conch.measure.bench.inputs.shared_memory import SharedRegions, registrar, share_tensors
from conch.measure.bench.records import RequestOutcome
from conch.measure.bench.targets.discover import discover
from conch.measure.bench.targets.target import BenchTarget, Protocol, TargetError
from tests.measure.bench.load.running import run
from tests.support.models import write_identity
from tests.support.server_process import ConchProcess

PROTOCOLS = ("http", "grpc", "grpc-stream")
REGIONS = Path("/dev/shm")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    root = tmp_path_factory.mktemp("models")
    write_identity(root, "floats", "FP32", 1000)
    write_identity(root, "texts", "STRING", -1, batch=4)
    log = tmp_path_factory.mktemp("log") / "log"
    with ConchProcess(root, "--allow-client-shm=true", log=log) as server:
        yield server


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[SharedRegions]]:
    """What is to be closed at exit, closed after the test."""
    regions: list[SharedRegions] = []
    monkeypatch.setattr(shared_memory.atexit, "register", lambda close: regions.append(close.__self__))
    yield regions
    for region in regions:
        region.close()


def target_of(server: ConchProcess, protocol: str, model: str = "floats") -> BenchTarget:
    url = f"http://{server.http}" if protocol == "http" else f"grpc://{server.grpc}"
    return discover(url, protocol=Protocol(protocol), model=model)


def source_of(target: BenchTarget, **settings: object) -> ScriptSource:
    return prepare_inputs(target, replace(InputSettings(distinct=3), **settings)).source


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("model", ["floats", "texts"])
def test_requests_name_regions(server, made, protocol, model):
    target = target_of(server, protocol, model)
    plain = source_of(target, shapes={"INPUT0": (7,)} if model == "texts" else {})
    shared = share_tensors(target, plain)
    assert plain.fixed is not None
    assert shared.fixed is not None
    ran = run(LoadPlan(target.endpoint, shared, ClosedLoop(2), requests=9))
    assert ran.outcomes == {RequestOutcome.OK: 9}, ran.errors
    assert max(len(request.body) for request in shared.fixed) < 600
    names = sorted(path.name for path in REGIONS.glob(f"conch-bench-*-{os.getpid()}-*"))
    assert sorted(registrar(target).registered()) == names
    assert len(names) == 2
    made[0].close()
    assert registrar(target).registered() == []
    assert not list(REGIONS.glob(f"conch-bench-*-{os.getpid()}-*"))


def test_outputs_are_written_to_the_region(server, made):
    target = target_of(server, "grpc")
    shared = share_tensors(target, source_of(target, distinct=1))
    ran = run(LoadPlan(target.endpoint, shared, ClosedLoop(1), requests=2))
    assert ran.outcomes == {RequestOutcome.OK: 2}, ran.errors
    sent, written = sorted(
        REGIONS.glob(f"conch-bench-*-{os.getpid()}-*"), key=lambda path: int(path.name.split("-")[-1])
    )
    assert any(sent.read_bytes())
    assert sent.read_bytes()[:4000] == written.read_bytes()[:4000]


def test_room_for_outputs_that_is_too_small_is_an_error_of_each_request(server, made):
    target = target_of(server, "http")
    shared = share_tensors(target, source_of(target), 16)
    ran = run(LoadPlan(target.endpoint, shared, ClosedLoop(1), requests=3))
    assert ran.outcomes == {RequestOutcome.SERVER_ERROR: 3}
    assert "shared memory" in ran.errors[0]


def test_what_is_not_supported(server, made, tmp_path):
    target = target_of(server, "http")
    with pytest.raises(InputError, match="--expect needs answers"):
        share_tensors(target, source_of(target, expect="first"))
    with pytest.raises(InputError, match="not for tensors in JSON"):
        share_tensors(target, source_of(target, json_tensors=True))
    with pytest.raises(InputError, match="not for generate"):
        share_tensors(replace(target, protocol=Protocol.GENERATE), source_of(target))


def test_a_server_that_refuses_leaves_nothing(made, tmp_path):
    write_identity(tmp_path / "models", "floats", "FP32", 4)
    with ConchProcess(tmp_path / "models", log=tmp_path / "log") as server:
        target = target_of(server, "grpc")
        with pytest.raises(TargetError, match="--allow-client-shm"):
            share_tensors(target, source_of(target))
    assert not list(REGIONS.glob(f"conch-bench-*-{os.getpid()}-*"))


KILLED = """
import sys, time
from conch.measure.bench.inputs.shared_memory import SharedRegions, registrar
from conch.measure.bench.targets.discover import discover
SharedRegions(registrar(discover(sys.argv[1], model="floats"))).create([b"abc"], 64)
print("made", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_regions_of_a_killed_process_are_removed_at_the_next_start(server, made, protocol):
    target = target_of(server, protocol)
    with subprocess.Popen([sys.executable, "-c", KILLED, target.url], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"made\n"
        left = f"conch-bench-*-{process.pid}-*"
        regions = SharedRegions(registrar(target))
        regions.remove_stale()
        assert len(list(REGIONS.glob(left))) == 1  # it still runs
        process.send_signal(signal.SIGKILL)
        process.wait()
    deadline = time.monotonic() + 60
    while list(REGIONS.glob(left)) and time.monotonic() < deadline:
        regions.remove_stale()
    assert not list(REGIONS.glob(left))
    assert registrar(target).registered() == []
