"""A server whose disk is full: traces, the audit log, the log and uploads fail, requests do not; it recovers."""

import base64
import json
import re
import urllib.error
import urllib.request
from pathlib import Path
from time import monotonic, sleep

import numpy as np
import pytest

from conch.server.limits.audit_log import verify
from tests.server.clients import Client
from tests.support.models import write_identity
from tests.support.server_process import ConchProcess
from tests.support.small_disk import fill, small_disk

ARRAY = {"INPUT0": np.array([1.5, -2], np.float32)}


def put(url: str, document: object, method: str = "PUT") -> int:
    body = json.dumps(document).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def traced(path: Path) -> set[int]:
    """Return the numbers of the traces in a file, none while it is being written."""
    try:
        return {entry["id"] for entry in json.loads(path.read_text())}
    except (FileNotFoundError, json.JSONDecodeError):
        return set()


def until_traced(path: Path, client: Client, number: int) -> None:
    deadline = monotonic() + 30
    while len(traced(path)) < number:
        assert monotonic() < deadline
        client.ask("m", ARRAY)
        sleep(0.1)


@pytest.mark.parametrize("numbered", [False, True])
def test_requests_are_answered_and_everything_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numbered: bool
) -> None:
    write_identity(tmp_path / "models", "m", "FP32", -1)
    with small_disk(tmp_path / "disk", 1) as disk:
        trace, audit, log = disk / "trace.json", disk / "audit.jsonl", disk / "log"
        monkeypatch.setenv("TMPDIR", str(disk))
        flags = [
            *(f"--trace-config=triton,file={trace}", "--trace-config=level=TIMESTAMPS", "--trace-config=rate=1"),
            *(["--trace-config=triton,log-frequency=2"] if numbered else []),
            *(f"--limits-audit-log={audit}", "--model-control-mode=explicit", "--load-model=m"),
        ]
        with ConchProcess(tmp_path / "models", *flags, log=log) as server:
            limits, client = f"http://{server.http}/v2/limits", Client(server, "http")
            assert put(limits, {"limits": [{"model": "m", "requests_per_second": 100_000}]}) == 200
            first = Path(f"{trace}.0") if numbered else trace
            until_traced(first, client, 2)
            filler = fill(disk)
            before = audit.read_bytes()
            for _ in range(300):
                assert client.ask("m", ARRAY).as_numpy("OUTPUT0").tolist() == [1.5, -2]
            many = [{"model": f"model-{number}", "requests_per_second": 5} for number in range(100)]  # over a page
            for _ in range(3):
                assert put(limits, {"limits": many}) == 503
            upload = {"parameters": {"config": "{}", "file:1/x": base64.b64encode(bytes(100_000)).decode()}}
            assert put(f"http://{server.http}/v2/repository/models/up/load", upload, "POST") == 503
            sleep(0.5)
            assert audit.read_bytes() == before
            assert "conch_limit_audit_failures_total 3" in server.metrics()
            known = {path.name for path in disk.iterdir()}
            filler.unlink()
            assert put(limits, {"limits": [{"model": "m", "requests_per_second": 90_000}]}) == 200
            deadline = monotonic() + 60
            while sum(len(traced(path)) for path in disk.glob("trace.json*")) <= 10:
                assert monotonic() < deadline
                client.ask("m", ARRAY)
                sleep(0.02)
            # No empty files were left for traces that could not be written.
            assert len([name for name in known if name.startswith("trace.json")]) <= 3
        written = log.read_text()
        assert "Traceback" not in written
        assert "Logging error" not in written
    assert not re.search("died|exited with", written)


def test_the_audit_log_is_intact_after_a_full_disk(tmp_path: Path) -> None:
    write_identity(tmp_path / "models", "m", "FP32", -1)
    with small_disk(tmp_path / "disk", 1) as disk:
        audit = disk / "audit.jsonl"
        with ConchProcess(tmp_path / "models", f"--limits-audit-log={audit}", log=tmp_path / "log") as server:
            limits = f"http://{server.http}/v2/limits"
            for number in range(1, 20):
                filler = fill(disk) if number % 2 else None
                expected = 503 if number % 2 else 200
                # A page of the file may have room for one more record.
                status = put(limits, {"limits": [{"model": "m", "requests_per_second": number}]})
                assert status in (expected, 200)
                if filler is not None:
                    filler.unlink()
        assert verify([audit]).findings == []
