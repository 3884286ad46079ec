"""Fuzzing of configurations: `python -m tests.server.robustness.config_fuzz --cases 100000`.

A server is given configurations made from a seed, over the load API and in a repository at start. Each has to be served
or refused within a bound of time and memory, health being answered all the while, and nothing may be logged that the
server did not expect.
"""

import argparse
import http.client
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Self

from tests.server.robustness.config_input import as_json, as_text, changed, right
from tests.support.models import write_identity
from tests.support.server_process import ConchProcess, waited_for_cpu_s

# Far more than any case needs on a machine that others use too.
CASE_TIMEOUT_S = 60.0
MAX_STALL_S = 2.0
MAX_MEMORY_BYTES = 3 << 30
_UNEXPECTED = ("Traceback", "failed unexpectedly", "Exception in callback")


@dataclass
class Report:
    """Outcomes of the cases."""

    cases: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    slowest: str = ""
    stall_s: float = 0.0  # the longest that health was not answered
    findings: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        outcomes = ", ".join(f"{outcome} {count}" for outcome, count in self.outcomes.most_common(15))
        return (
            f"{self.cases} cases: {outcomes}; slowest {self.slowest_s:.2f} s, health at worst {self.stall_s:.3f} s; "
            f"{len(self.findings)} findings\nslowest: {self.slowest[:300]}"
        )


class Client:
    """Requests to a server, one after the other."""

    def __init__(self, port: int, timeout_s: float = CASE_TIMEOUT_S) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        """Return status and body. Raises OSError, TimeoutError among it."""
        self._connection.request(method, path, None if body is None else json.dumps(body))
        answer = self._connection.getresponse()
        return answer.status, answer.read()


@contextmanager
def watched(conch: ConchProcess, report: Report) -> Iterator[None]:
    """Ask for health again and again inside of the block, and note the longest wait."""
    over = threading.Event()

    def watch() -> None:
        pid = conch.process.pid
        with Client(conch.ports["http"]) as client:
            while not over.wait(0.02):
                began = time.monotonic() - waited_for_cpu_s(pid)
                status, _ = client.ask("GET", "/v2/health/live")
                report.stall_s = max(report.stall_s, time.monotonic() - waited_for_cpu_s(pid) - began)
                if status != 200:
                    report.findings.append(f"health is {status}")

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def load_cases(conch: ConchProcess, random: Random, cases: int, report: Report, *, progress: bool = False) -> None:
    """Load configurations over HTTP, ask what is loaded for everything that can be asked, and unload it."""
    port = conch.ports["http"]
    for number in range(cases):
        text = as_json(random, changed(random, right(random)))
        began = time.monotonic()
        try:
            with Client(port) as client:
                outcome = _load(client, port, random, text, report)
        except (OSError, http.client.HTTPException) as error:
            report.findings.append(f"{error!r} for {text[:2000]}")
            outcome = "lost"
        _note(report, outcome, time.monotonic() - began, text)
        if progress and number % 500 == 499:
            print(report, flush=True)


def _load(client: Client, port: int, random: Random, text: str, report: Report) -> str:
    status, body = client.ask("POST", "/v2/repository/models/case/load", {"parameters": {"config": text}})
    outcome = f"{status}"
    if status == 200:
        outcome = _use(client, port, random)
    elif len(said := json.loads(body)["error"]) > 20_000:
        report.findings.append(f"a message of {len(said)} characters: {said[:200]} for {text[:1000]}")
    client.ask("POST", "/v2/repository/models/case/unload")
    return outcome


def _use(client: Client, port: int, random: Random) -> str:
    """Ask a loaded model."""
    for method, path in (
        ("GET", "/v2/models/case"),
        ("GET", "/v2/models/case/config"),
        ("GET", "/v2/models/case/stats"),
        ("GET", "/v2/models/case/ready"),
    ):
        client.ask(method, path)
    _, body = client.ask("GET", "/v2/models/case")
    inputs = json.loads(body).get("inputs", [])
    tensors = [
        {
            "name": tensor["name"],
            "datatype": tensor["datatype"],
            "shape": [max(dim, 1) for dim in tensor["shape"]],
            "data": [1 if tensor["datatype"] != "BYTES" else "x"] * 4,
        }
        for tensor in inputs[:5]
    ]
    parameters = {"priority": random.choice((0, 1, 2**63)), "timeout": random.choice((0, 1, 1_000_000))}
    parameters |= {"sequence_id": 7, "sequence_start": True, "sequence_end": True}
    request = {"inputs": tensors, "parameters": parameters}
    with Client(port, 2.0) as impatient:
        try:
            status, _ = impatient.ask("POST", "/v2/models/case/infer", request)
        except TimeoutError:  # it may wait for company for as long as its configuration says
            return "served, waits"
    return f"served, {status}"


def write_cases(root: Path, random: Random, cases: int) -> None:
    """Write a repository of configurations."""
    for number in range(cases):
        folder = root / f"case{number}"
        (folder / "1").mkdir(parents=True)
        (folder / "config.pbtxt").write_text(as_text(random, changed(random, right(random))), errors="replace")


def settled(conch: ConchProcess, report: Report) -> list[dict[str, str]]:
    """Return the repository's index once every model is served or refused."""
    until = time.monotonic() + 3 * CASE_TIMEOUT_S
    with Client(conch.ports["http"]) as client:
        while True:
            _, body = client.ask("POST", "/v2/repository/index")
            rows: list[dict[str, str]] = json.loads(body)
            loading = [row for row in rows if row.get("state", "LOADING") == "LOADING"]
            if rows and not loading:
                return rows
            if time.monotonic() > until:
                report.findings.append(f"still loading: {loading[:5]}")
                return rows
            time.sleep(0.1)


def start_cases(root: Path, log: Path, random: Random, cases: int, report: Report) -> None:
    """Start a server on configurations; all are served or refused before it is stopped."""
    write_cases(root, random, cases)
    write_identity(root, "part", "FP32", -1, batch=64)
    with ConchProcess(root, "--exit-on-error=false", "--strict-readiness=false", log=log, wait="live") as conch:
        with watched(conch, report):
            rows = settled(conch, report)
        check(conch, report)
    for row in (row for row in rows if row["name"] != "part"):
        report.outcomes[row.get("state", "?")] += 1
    report.cases += cases


def check(conch: ConchProcess, report: Report) -> None:
    """Note what a server has used and logged that it should not."""
    status = Path(f"/proc/{conch.process.pid}/status").read_text()
    peak = int(status.partition("VmHWM:")[2].split()[0]) * 1024
    if peak > MAX_MEMORY_BYTES:
        report.findings.append(f"the server has used {peak >> 20} MiB")
    log = conch.text
    for mark in _UNEXPECTED:
        if mark in log:
            at = log.index(mark)
            report.findings.append(f"in the log: {log[max(at - 500, 0) : at + 3000]}")
    if report.stall_s > MAX_STALL_S:
        report.findings.append(f"health was not answered for {report.stall_s:.1f} s")


def _note(report: Report, outcome: str, took: float, text: str) -> None:
    report.cases += 1
    report.outcomes[outcome] += 1
    if took > report.slowest_s:
        report.slowest_s, report.slowest = took, text
    if took > CASE_TIMEOUT_S:
        report.findings.append(f"took {took:.1f} s: {text[:2000]}")


def fuzz_loads(directory: Path, seed: int, cases: int, *, progress: bool = False) -> Report:
    """Run cases over the load API of a separate server."""
    report = Report()
    (directory / "models").mkdir(parents=True)
    write_identity(directory / "models", "part", "FP32", -1, batch=64)
    (directory / "models" / "case" / "1").mkdir(parents=True)
    flags = ("--model-control-mode=explicit", "--load-model=part")
    with ConchProcess(directory / "models", *flags, log=directory / "log") as conch:
        with watched(conch, report):
            load_cases(conch, Random(seed), cases, report, progress=progress)
        check(conch, report)
    return report


def fuzz_start(directory: Path, seed: int, cases: int) -> Report:
    """Run cases at the start of a server."""
    report = Report()
    start_cases(directory / "models", directory / "log", Random(seed), cases, report)
    return report


def main() -> int:
    """Run as long as asked."""
    parser = argparse.ArgumentParser(description="Fuzz configurations of models.")
    parser.add_argument("--cases", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    findings = 0
    with tempfile.TemporaryDirectory() as directory:
        loads = fuzz_loads(Path(directory) / "loads", arguments.seed, arguments.cases, progress=True)
        start = fuzz_start(Path(directory) / "start", arguments.seed + 1, arguments.cases // 10)
        for name, report in (("loads", loads), ("start", start)):
            print(f"{name}: {report}", *report.findings[:20], sep="\n")
            findings += len(report.findings)
    print(f"seed {arguments.seed}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
