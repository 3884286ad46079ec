"""`conch why` against causes that are injected blindly: how often it names the right one, and how exactly.

Each run sends ordinary requests to a real server, draws one or two causes with their sizes, makes them happen to one
request, and then explains the slowest request from the event log alone. The label is compared afterwards: the first
cause, and its milliseconds with what the client measured or the injection took, and for processors with how long the
kernel says that the model's process waited for one (/proc/PID/schedstat).

    python -m benchmarks.why_causes --runs 200 --json why.json
"""

import argparse
import http.client
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Any

from conch.base.http.client import answers_ok
from conch.base.process.local_server import serve_command, started_ports
from conch.domain.causes.explain import Explainer
from conch.domain.causes.parts import RequestParts
from conch.domain.causes.sentences import request_sentence, totals
from conch.domain.events.layout import INSTANCE_CHANGES
from conch.domain.events.log import EventLog
from conch.measure.why.source import fetch_log

_SLEEP_MS, _BURN_MS = 30.0, 20.0  # of an ordinary request; that of one model computes, the others sleep
_ORDINARY = 12  # requests of a run
_MIN_EFFECT_MS = 20.0  # of the first cause, below which an injection has had no effect
_TOLERANCE = 0.1
_BIG = 4_000_000  # bytes of inputs
_ANSWER = 16_000_000  # bytes that do not fit into the buffers of a socket
_SMALL = 2_000
_KERNELS = -1.0

_MODEL = """
import os
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.name = args["model_name"]
        if self.name == "reloaded":
            os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
            burn(1500)

    def execute(self, requests):
        responses = []
        sleep, cpu = 0.0, 0.0
        for request in requests:
            work = pb_utils.get_input_tensor_by_name(request, "WORK").as_numpy().reshape(-1)
            sleep, cpu = max(sleep, float(work[0])), max(cpu, float(work[1]))
        time.sleep(sleep / 1000)
        burn(cpu)
        for request in requests:
            size = int(pb_utils.get_input_tensor_by_name(request, "WORK").as_numpy().reshape(-1)[2])
            out = np.zeros((1, size), np.uint8)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", out)]))
        return responses


def burn(ms):
    end = time.thread_time() + ms / 1000
    while time.thread_time() < end:
        pass
"""

_CONFIG = """
name: "{name}"
backend: "python"
max_batch_size: {batch}
input [{{ name: "WORK" data_type: TYPE_FP32 dims: [ 3 ] }}, {{ name: "DATA" data_type: TYPE_UINT8 dims: [ -1 ] }}]
output [{{ name: "OUT" data_type: TYPE_UINT8 dims: [ -1 ] }}]
instance_group [{{ kind: KIND_CPU count: 1 }}]
{extra}
"""

# Collects garbage in the server when asked: as many objects as make a collection take a while.
_LAUNCHER = """
import gc, os, sys, threading
def storm():
    with os.fdopen({pipe}, "rb", 0) as pipe:
        kept = []
        while command := pipe.read(1):
            kept = kept or [[number] for number in range({objects})]
            for _ in range(command[0]):
                gc.collect()
threading.Thread(target=storm, daemon=True).start()
sys.argv = sys.argv[1:]
from conch.cli import main
sys.exit(main())
"""


@dataclass
class Verdict:
    """One run: what was injected, what was found."""

    injected: str
    label: list[tuple[str, float]]
    found: list[tuple[str, float]]
    waited: float  # ms that the model's process was ready to run without a processor, more than usual
    sentence: str = ""

    @property
    def right(self) -> bool:
        """Whether the first cause is that which was injected, or another one that took as long."""
        first = [cause for cause, ms in self.label if ms >= (1 - _TOLERANCE) * self.label[0][1]]
        return bool(self.found) and self.found[0][0] in first

    @property
    def exact(self) -> bool:
        """Whether its time is within the tolerance."""
        wanted = self.label[0][1]
        got = dict(self.found).get(self.label[0][0], 0.0)
        return abs(got - wanted) <= _TOLERANCE * wanted


@dataclass
class Bench:
    """A running server, and how requests are sent to it."""

    port: int
    pid: int
    storm: int  # descriptor that asks for collections
    rng: random.Random
    pids: dict[str, int] = field(default_factory=dict)
    sent: int = 0
    waited: dict[str, float] = field(default_factory=dict)  # ms that the process of each model did while it last served
    read_ms: float = 0.0  # how long the last client took to read its answer

    def ask(
        self, model: str, *, sleep: float = 0.0, size: int = _SMALL, send_s: float = 0.0, read_s: float = 0.0,
        salt: int = 0, id_: str = "", out: int = 1,
    ) -> float:  # fmt: skip
        """Send a request; return its time in ms. `sleep` (ms) is added; the others are pauses of the client."""
        head, body = self.request(model, sleep=sleep, size=size, salt=salt, id_=id_, out=out)
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            waited = self._waits(model)
            start = time.perf_counter()
            if send_s:
                connection.sendall(head + body[: len(body) // 2])
                time.sleep(send_s)
                connection.sendall(body[len(body) // 2 :])
            else:
                connection.sendall(head + body)
            connection.recv(1, socket.MSG_PEEK)  # until the answer begins
            begun = time.perf_counter()
            # Later the process waits, too, with what it does after the answer.
            self.waited[model] = self._waits(model) - waited
            time.sleep(read_s)
            _read(connection)
            self.read_ms = (time.perf_counter() - begun) * 1000
            return (time.perf_counter() - start) * 1000

    def _waits(self, model: str) -> float:
        pid = self.pids[model] = self.pids.get(model) or _pid(self, model)
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e6

    def request(self, model: str, *, sleep: float, size: int, salt: int, id_: str, out: int) -> tuple[bytes, bytes]:
        """Return head and body of a request."""
        base = (0.0, _BURN_MS) if model == "burner" else (_SLEEP_MS, 0.0)
        numbers = struct.pack("<3f", base[0] + sleep, base[1], out)
        document = json.dumps({
            "id": id_,
            "inputs": [
                {"name": "WORK", "datatype": "FP32", "shape": [1, 3], "parameters": {"binary_data_size": len(numbers)}},
                {"name": "DATA", "datatype": "UINT8", "shape": [1, size], "parameters": {"binary_data_size": size}},
            ],
            "outputs": [{"name": "OUT", "parameters": {"binary_data": True}}],
        }).encode()  # fmt: skip
        body = document + numbers + salt.to_bytes(4, "little") + b"\0" * (size - 4)
        head = (
            f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n"
            f"Content-Length: {len(body)}\r\nInference-Header-Content-Length: {len(document)}\r\n"
            "Connection: close\r\n\r\n"
        )
        return head.encode(), body


def _read(connection: socket.socket) -> None:
    """Read an answer to its end. Raises RuntimeError for another status than 200."""
    response = http.client.HTTPResponse(connection)
    response.begin()
    text = response.read()
    if response.status != 200:
        raise RuntimeError(f"HTTP {response.status}: {text[:300]!r}")


# ── causes: each makes itself happen to one request, and returns the request's time and its own in ms; 0: what the
#    request took more than usual; _KERNELS: what the kernel says that the model waited for a processor ──


def slow_model(bench: Bench, ms: float, **others: Any) -> tuple[float, float]:
    """The model sleeps; nothing of that is in shapes or sizes."""
    return bench.ask("work", sleep=ms, **others), ms


def large_request(bench: Bench, ms: float, **others: Any) -> tuple[float, float]:
    """One request with many bytes runs when the request comes."""
    ended = list[float]()
    ahead = threading.Thread(target=lambda: ended.append(_end(bench, sleep=ms + 60, size=_BIG)))
    ahead.start()
    time.sleep(0.06)
    begun = time.perf_counter()
    took = bench.ask("work", **others)
    ahead.join()
    return took, (ended[0] - begun) * 1000


def _end(bench: Bench, **others: Any) -> float:
    bench.ask("work", **others)
    return time.perf_counter()


def stopped_process(bench: Bench, ms: float, **others: Any) -> tuple[float, float]:
    """The process of the model is stopped while it computes, for long enough to be seen."""
    pid = _pid(bench, "work")
    held = list[float]()

    def stop() -> None:
        time.sleep(0.008)
        os.kill(pid, signal.SIGSTOP)
        start = time.perf_counter()
        time.sleep(0.5 + ms / 200)
        os.kill(pid, signal.SIGCONT)
        held.append((time.perf_counter() - start) * 1000)

    thread = threading.Thread(target=stop)
    thread.start()
    took = bench.ask("work", **others)
    thread.join()
    return took, 0


def cpu_hog(bench: Bench, _ms: float, **others: Any) -> tuple[float, float]:
    """Busy processes share the model's only processor."""
    with _one_core(bench) as core:
        hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(6)]
        try:
            for hog in hogs:
                os.sched_setaffinity(hog.pid, {core})
            time.sleep(0.2)
            return bench.ask("burner", **others), _KERNELS
        finally:
            for hog in hogs:
                hog.kill()
                hog.wait()


@contextmanager
def _one_core(bench: Bench) -> Iterator[int]:
    """Keep the process of a model on one processor, and the server's event loop off it."""
    pid = _pid(bench, "burner")
    before = os.sched_getaffinity(pid)
    core = max(before)
    os.sched_setaffinity(pid, {core})
    os.sched_setaffinity(bench.pid, before - {core} or before)
    try:
        yield core
    finally:
        os.sched_setaffinity(pid, before)
        os.sched_setaffinity(bench.pid, before)


def garbage_storm(bench: Bench, ms: float, **others: Any) -> tuple[float, float]:
    """The server collects garbage while the model computes, so that its answer waits."""
    timer = threading.Timer(0.015, lambda: os.write(bench.storm, bytes([2 + int(ms / 40)])))
    timer.start()
    took = bench.ask("work", **others)
    timer.join()
    time.sleep(0.5)  # a collection is recorded when it ends
    return took, 0


def small_delay(bench: Bench, _ms: float, **others: Any) -> tuple[float, float]:
    """A request without batch mates waits for the delay of the batcher."""
    return bench.ask("batcher", **others), 0


def long_queue(bench: Bench, ms: float, **others: Any) -> tuple[float, float]:
    """Other requests came first."""
    count, ended = max(int(ms / _SLEEP_MS), 3), list[float]()
    before = [threading.Thread(target=lambda: ended.append(_end(bench))) for _ in range(count)]
    for thread in before:
        thread.start()
    time.sleep(_SLEEP_MS / 2000)  # all others have come
    begun = time.perf_counter()
    took = bench.ask("work", **others)
    for thread in before:
        thread.join()
    return took, (max(ended) - begun) * 1000


def slow_reader(bench: Bench, ms: float, **others: Any) -> tuple[float, float]:
    """The client waits before it reads a large answer."""
    took = bench.ask("work", read_s=(ms + 50) / 1000, **others)
    return took, bench.read_ms


def slow_sender(bench: Bench, ms: float, **others: Any) -> tuple[float, float]:
    """The client pauses in the middle of its request."""
    return bench.ask("work", send_s=ms / 1000, **others), ms


def cold_cache(bench: Bench, ms: float, **others: Any) -> tuple[float, float]:
    """A request that the response cache does not have."""
    bench.sent += 1
    return bench.ask("cached", salt=1 + bench.sent, sleep=ms, **others), 0


def reload(bench: Bench, _ms: float, **others: Any) -> tuple[float, float]:
    """Another model is loaded, on the only processor of the model."""
    with _one_core(bench):
        loading = threading.Thread(target=_load, args=(bench.port, "reloaded"))
        loading.start()
        time.sleep(0.5)
        took = bench.ask("burner", **others)
        loading.join()
    return took, _KERNELS


def _load(port: int, model: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    for action in ("unload", "load"):
        connection.request("POST", f"/v2/repository/models/{model}/{action}", b"{}")
        connection.getresponse().read()
    connection.close()


def _pid(bench: Bench, model: str) -> int:
    log = fetch_log(f"127.0.0.1:{bench.port}", 1e6)
    rows = log.instances[log.instances["model"] == log.names.index(model)]
    up = rows[rows["change"] == INSTANCE_CHANGES.index("up")]
    return int(up[-1]["pid"])


@dataclass(frozen=True)
class Injection:
    """A cause: how to make it happen, the name that an explanation gives it, and the model that shows it."""

    cause: str
    inject: Callable[..., tuple[float, float]]
    explained_as: str
    model: str = "work"


INJECTIONS = (
    Injection("slow model", slow_model, "slow"),
    Injection("lone big request", large_request, "large"),
    Injection("stopped process", stopped_process, "stopped"),
    Injection("CPU hog", cpu_hog, "cpu", "burner"),
    Injection("GC storm", garbage_storm, "gc"),
    Injection("small delay", small_delay, "mates", "batcher"),
    Injection("long queue", long_queue, "ahead"),
    Injection("slow reader", slow_reader, "client_read"),
    Injection("slow sender", slow_sender, "client_send"),
    Injection("cold cache", cold_cache, "miss", "cached"),
    Injection("reload", reload, "loading", "burner"),
)

# A queue is what waits, and what is executed already.
_SAME = {"busy": "ahead"}


def run(bench: Bench, number: int) -> Verdict:
    """Inject one or two causes; explain the request without knowing which."""
    rng = bench.rng
    first = INJECTIONS[number % len(INJECTIONS)]
    begun = time.monotonic()
    ms = rng.uniform(60, 200)
    others: dict[str, Any] = {"id_": f"probe-{number}"}
    more = ("", 0.0)
    # What the client does can come with a cause in the server.
    if first.explained_as != "client_read" and rng.random() < 0.4:
        ms_more = rng.uniform(60, 300)
        by_sender = first.explained_as in ("mates", "miss", "slow")
        others["send_s" if by_sender else "read_s"] = ms_more / 1000
        more = ("client_send" if by_sender else "client_read", ms_more)
    out = _ANSWER if "client_read" in (first.explained_as, more[0]) else 1
    usual, usual_wait, usual_read = _ordinary(bench, first.model, f"ordinary-{number}", out)
    others["out"] = out
    took, exact = first.inject(bench, ms, **others)
    waited = bench.waited[first.model] - usual_wait
    if more[0] == "client_read":
        more = (more[0], bench.read_ms - usual_read)
    if exact == _KERNELS:
        exact = waited
    if first.explained_as == "client_read":
        exact -= usual_read
    elif first.explained_as in ("large", "ahead"):  # others took processors from those that were executed before, too
        exact -= max(bench.waited[first.model] - usual_wait * (1 + exact / _SLEEP_MS), 0)
    label = [(first.explained_as, exact or took - usual - more[1]), *([more] if more[0] else [])]
    label.sort(key=lambda item: -item[1])
    log = fetch_log(f"127.0.0.1:{bench.port}", time.monotonic() - begun + 1)
    causes, sentence = _explained(log, f"probe-{number}", f"ordinary-{number}")
    return Verdict(first.cause, label, causes, waited, sentence)


def _ordinary(bench: Bench, model: str, id_: str, out: int) -> tuple[float, float, float]:
    """Send ordinary requests to a model.

    Returns their median time, and how long the process waited for a processor and the client read on average, in ms.
    """
    times, waits, reads = list[float](), list[float](), list[float]()
    if model != "batcher":
        for _ in range(_ORDINARY):
            times.append(bench.ask(model, id_=id_, out=out))
            waits.append(bench.waited[model])
            reads.append(bench.read_ms)
        return median(times), mean(waits), mean(reads)
    for _ in range(_ORDINARY // 4):
        mates = [threading.Thread(target=lambda: times.append(bench.ask("batcher", id_=id_))) for _ in range(4)]
        for mate in mates:
            mate.start()
        for mate in mates:
            mate.join()
    return median(times), 0.0, 0.0


def _explained(log: EventLog, probe: str, ordinary: str) -> tuple[list[tuple[str, float]], str]:
    """Return what a request spent more than ordinary ones, in ms by cause, the most first, and the sentence."""
    explainer = Explainer(log)
    ids = log.tables["ids"]
    numbers = ids["request"][ids["text"] == log.names.index(ordinary)].tolist()
    times = Counter[str]()
    for number in numbers:
        for cause, _, ns in totals(_request(explainer, number)):
            times[_SAME.get(cause, cause)] -= ns / len(numbers)  # type: ignore[assignment]
    request = _request(explainer, log.find(probe))
    for cause, _, ns in totals(request):
        times[_SAME.get(cause, cause)] += ns
    # What ordinary requests lose to other processes is not the load's doing.
    if times["loading"]:
        times["loading"] += min(times["cpu"], 0) + min(times["slow"], 0)
    return [(cause, ns / 1e6) for cause, ns in times.most_common()], request_sentence(request)


def _request(explainer: Explainer, number: int) -> RequestParts:
    parts = explainer.explain(number)
    assert parts is not None
    return parts


@contextmanager
def serving(folder: Path, rng: random.Random) -> Iterator[Bench]:
    """Serve the models, with a thread in the server that collects garbage on request."""
    batching = "dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 90000 }"
    caching = "response_cache { enable: true }"
    plain = [(name, 1, "") for name in ("work", "burner", "reloaded")]
    for name, batch, extra in (*plain, ("batcher", 4, batching), ("cached", 1, caching)):
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "1" / "model.py").write_text(_MODEL)
        (folder / name / "config.pbtxt").write_text(_CONFIG.format(name=name, batch=batch, extra=extra))
    reading, writing = os.pipe()
    launcher = _LAUNCHER.format(objects=400_000, pipe=reading)
    command = serve_command(
        f"--model-repository={folder}", "--model-control-mode=explicit", "--cache-config=local,size=100000000",
        *(f"--load-model={name}" for name in ("work", "burner", "batcher", "cached")),
    )  # fmt: skip
    log = folder.parent / "log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, "-c", launcher, *command[2:]], stdout=output, stderr=subprocess.STDOUT, pass_fds=[reading]
        )
    try:
        limit = time.monotonic() + 60
        while not (
            (ports := started_ports(log)) and answers_ok(f"http://127.0.0.1:{ports['http']}/v2/health/ready", 5)
        ):
            if server.poll() is not None or time.monotonic() > limit:
                raise RuntimeError(log.read_text(errors="replace"))
            time.sleep(0.1)
        bench = Bench(started_ports(log)["http"], server.pid, writing, rng)
        bench.ask("cached")
        os.write(writing, b"\1")  # from now on a collection takes a while
        yield bench
    finally:
        server.terminate()
        server.wait()
        os.close(reading)
        os.close(writing)


def _is_ready(port: int) -> bool:
    return answers_ok(f"http://127.0.0.1:{port}/v2/health/ready", 5)


def main() -> None:
    """Run, and print how often the first cause was right and exact."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    verdicts = list[Verdict]()
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder, "models"), random.Random(given.seed)) as bench:
        for number in range(given.runs):
            verdicts.append(verdict := run(bench, number))
            mark = "right" if verdict.right else "WRONG"
            shown = (
                [f"{cause} {ms:.1f}" for cause, ms in verdict.label],
                [f"{c} {ms:.1f}" for c, ms in verdict.found[:3]],
            )
            print(
                f"{number:4} {verdict.injected:18} {mark} {'exact' if verdict.exact else '     '} {shown}", flush=True
            )
    if given.json:
        given.json.write_text(json.dumps([asdict(verdict) for verdict in verdicts], indent=1))
    _print(verdicts)


def _print(runs: list[Verdict]) -> None:
    verdicts = [run for run in runs if run.label[0][1] >= _MIN_EFFECT_MS]
    print(f"{len(runs) - len(verdicts)} of {len(runs)} injections had an effect of less than {_MIN_EFFECT_MS:g} ms")
    kinds = Counter(verdict.injected for verdict in verdicts)
    for kind, count in kinds.items():
        mine = [verdict for verdict in verdicts if verdict.injected == kind]
        print(f"{kind:18} {count:4} runs  {_rate(mine)}")
    for number, name in ((1, "one cause"), (2, "two causes")):
        mine = [verdict for verdict in verdicts if len(verdict.label) == number]
        print(f"{name:18} {len(mine):4} runs  {_rate(mine)}")
    print(f"{'all':18} {len(verdicts):4} runs  {_rate(verdicts)}")
    seen = [(dict(run.found).get("cpu", 0.0), run.waited) for run in runs if run.injected == "CPU hog"]
    close = sum(abs(explained - kernel) <= max(_TOLERANCE * kernel, 2) for explained, kernel in seen)
    print(f"CPU taken by others: as the kernel's account within 10 % or 2 ms in {close} of {len(seen)} runs")


def _rate(verdicts: list[Verdict]) -> str:
    count = max(len(verdicts), 1)
    right, exact = sum(verdict.right for verdict in verdicts), sum(verdict.exact for verdict in verdicts)
    return f"first cause right {right / count:6.1%}, within {_TOLERANCE:.0%} {exact / count:6.1%}"


if __name__ == "__main__":
    main()
