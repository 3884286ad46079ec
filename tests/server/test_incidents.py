"""Incident bundles of a real server: by signal, endpoint and counters; who may ask for one; a full disk."""

import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep

import numpy as np
import pytest

from conch.base.archives import tar_members
from conch.domain.events.bundle import Bundle
from tests.server.clients import Client
from tests.support.models import tensor, write_identity, write_python
from tests.support.server_process import ConchProcess
from tests.support.small_disk import fill, small_disk

ARRAY = {"INPUT0": np.array([1.5, -2], np.float32)}
_TIMEOUT_S = 60


class Incidents:
    """A server, and its folder of bundles."""

    def __init__(self, server: ConchProcess, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.client = Client(server, "http")

    def bundles(self, reason: str) -> list[Bundle]:
        """Return the bundles of a reason."""
        return [Bundle.read(path) for path in sorted(self.folder.glob(f"*-{reason}*.conch.tar.zst"))]

    def call(self, method: str = "GET", query: str = "", **headers: str) -> tuple[int, bytes]:
        """Call the endpoint."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        url = f"http://{self.server.http}/v2/debug/incident{query}"
        try:
            with urllib.request.urlopen(
                urllib.request.Request(url, headers=named, method=method), timeout=60
            ) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()


def until(condition: Callable[[], object]) -> None:
    deadline = monotonic() + _TIMEOUT_S
    while not condition():
        assert monotonic() < deadline
        sleep(0.02)


@pytest.fixture(scope="module")
def incidents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Incidents]:
    root = tmp_path_factory.mktemp("incidents")
    write_identity(root / "models", "m", "FP32", -1)
    secret = 'parameters: { key: "HF_TOKEN" value: { string_value: "s3cret" } }'
    tensors = f"input [{tensor('INPUT0', 'FP32', -1)}] output [{tensor('OUTPUT0', 'FP32', -1)}]"
    write_python(root / "models", "failing", f"{tensors} {secret}", "raise RuntimeError('no luck')")
    slow = """
    time.sleep(0.01)
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.zeros(1, np.float32))])
    """
    write_python(root / "models", "slow", tensors, slow)
    folder = root / "bundles"
    flags = (
        f"--incident-dir={folder}",
        "--incident-interval-secs=0",
        "--incident-failures=20",
        "--incident-p99-ms=5",
        "--incident-keep=50",
        "--incident-requests=whole",
    )
    with ConchProcess(root / "models", *flags, log=root / "log") as server, Client(server, "http"):
        yield Incidents(server, folder)


def test_a_signal_writes_a_bundle_of_the_requests(incidents: Incidents) -> None:
    for _ in range(5):
        incidents.client.ask("m", ARRAY, parameters={"password": "s3cret", "plain": "kept"})
    incidents.server.process.send_signal(signal.SIGUSR2)
    until(lambda: incidents.bundles("signal"))
    (bundle,) = incidents.bundles("signal")
    assert bundle.manifest["detail"] == "the server received SIGUSR2"
    log = bundle.log
    requests = log.requests[log.requests["model"] == log.names.index("m")]
    assert len(requests) == 5
    assert (requests["done"] > requests["received"]).all()
    assert 'nv_inference_request_success{model="m",version="1"} 5' in bundle.metrics
    assert "successfully loaded 'm' version 1" in bundle.log_lines
    assert bundle.models["m/1"]["config"]["name"] == "m"
    assert bundle.models["m/1"]["files_digest"].startswith("sha256:")
    kept = [request for request in bundle.requests if request["model"] == "m"]
    assert len(kept) == 5
    assert kept[0]["parameters"]["plain"] == "kept"
    assert {request["number"] for request in kept} == set(requests["number"].tolist())
    (path,) = incidents.folder.glob("*-signal*")
    assert b"s3cret" not in b"".join(_contents(path))


def _contents(path: Path) -> Iterator[bytes]:
    for _, content in tar_members(path, str(path)):
        yield content().read()


def test_a_client_gets_a_bundle_or_has_one_written(incidents: Incidents, tmp_path: Path) -> None:
    status, data = incidents.call(query="?last=60")
    assert status == 200
    (tmp_path / "x").write_bytes(data)
    assert Bundle.read(tmp_path / "x").manifest["reason"] == "request"
    status, answer = incidents.call("POST")
    assert (status, json.loads(answer)["outcome"][:8]) == (200, "a bundle")
    until(lambda: incidents.bundles("request"))
    assert 'conch_incidents_total{reason="request"} 1' in incidents.server.metrics()


def test_clients_elsewhere_are_refused(incidents: Incidents) -> None:
    for method in ("GET", "POST"):
        status, answer = incidents.call(method, X_Forwarded_For="203.0.113.7")
        assert status == 403, answer
    assert incidents.call(query="?last=x")[0] == 400


def test_a_burst_of_failures_and_a_death_write_bundles(incidents: Incidents) -> None:
    for _ in range(25):
        with pytest.raises(Exception, match="no luck"):
            incidents.client.ask("failing", ARRAY)
    until(lambda: incidents.bundles("failures"))
    assert "model 'failing/1' failed in 10 s" in incidents.bundles("failures")[0].manifest["detail"]
    pid = next(pid for pid in _children(incidents.server.process.pid) if "failing" in _title(pid))
    os.kill(pid, signal.SIGKILL)
    until(lambda: incidents.bundles("death"))
    (bundle,) = incidents.bundles("death")
    assert "exited with SIGKILL" in bundle.log_lines or "SIGKILL" in bundle.log_lines


def test_a_p99_over_its_budget_writes_a_bundle(incidents: Incidents) -> None:
    body = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]}]}).encode()
    url = f"http://{incidents.server.http}/v2/models/slow/infer"

    def bundles() -> list[Bundle]:
        return [bundle for bundle in incidents.bundles("p99") if "'slow/1' is over 5 ms" in bundle.manifest["detail"]]

    deadline = monotonic() + _TIMEOUT_S
    while not bundles():
        assert monotonic() < deadline
        for _ in range(10):
            urllib.request.urlopen(urllib.request.Request(url, body), timeout=60).close()


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


def _children(pid: int) -> list[int]:
    children = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        if parent == pid:
            children += [int(path.parent.name), *_children(int(path.parent.name))]
    return children


def test_keys_need_the_scope_and_a_small_ring_is_said(tmp_path: Path) -> None:
    write_identity(tmp_path / "models", "m", "FP32", -1)
    keys = tmp_path / "keys"
    keys.write_text("one infer,manage k1\ntwo debug k2\n")
    keys.chmod(0o600)
    flags = (f"--api-key-file={keys}", "--event-log-bytes=65536", "--incident-p99-ms=1")
    with ConchProcess(tmp_path / "models", *flags, log=tmp_path / "log") as server:
        incidents = Incidents(server, tmp_path)
        assert incidents.call()[0] == 401
        assert incidents.call(Authorization="Bearer k1")[0] == 403
        body = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]}]}).encode()
        for _ in range(500):
            request = urllib.request.Request(
                f"http://{server.http}/v2/models/m/infer", body, {"Authorization": "Bearer k1"}
            )
            urllib.request.urlopen(request, timeout=60).close()
        status, data = incidents.call(Authorization="Bearer k2", X_Forwarded_For="203.0.113.7")
        assert status == 200
        (tmp_path / "x").write_bytes(data)
        bundle = Bundle.read(tmp_path / "x")
        assert "earlier rows were overwritten" in bundle.missing[0]
        assert 0 < len(bundle.log.requests) < 500
        server.process.send_signal(signal.SIGUSR2)
        until(lambda: "no bundle is written without --incident-dir" in server.text)


def test_a_full_disk_costs_only_the_bundle(tmp_path: Path) -> None:
    write_identity(tmp_path / "models", "m", "FP32", -1)
    flags = (f"--incident-dir={tmp_path / 'disk'}", "--metrics-interval-ms=100")
    with small_disk(tmp_path / "disk", 1) as disk:
        log = tmp_path / "log"
        with ConchProcess(tmp_path / "models", *flags, log=log) as server, Client(server, "http"):
            incidents = Incidents(server, disk)
            filler = fill(disk)
            for _ in range(3):
                incidents.call("POST")
                assert incidents.client.ask("m", ARRAY).as_numpy("OUTPUT0").tolist() == [1.5, -2]
            until(lambda: "cannot write the bundle of an incident" in server.text)
            until(lambda: 'conch_degraded{reason="incident_not_written"} 1' in server.metrics())
            until(lambda: list(disk.iterdir()) == [filler])  # a write that has failed is removed
            filler.unlink()
            until(lambda: incidents.call("POST") and incidents.bundles("request"))
            assert len(incidents.bundles("request")[0].manifest["incidents"]) >= 4
            assert server.text.count("cannot write the bundle of an incident") == 1
