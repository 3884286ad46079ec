"""The load generators, `wrk` for HTTP/1.1 and `h2load` for gRPC: run one, read what it printed, doubt it."""

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.harness.payloads import Payload

WRK_SCRIPTS = Path(__file__).parent / "wrk"
DEBIAN_PACKAGES = {"wrk": "wrk", "h2load": "nghttp2-client"}
GRACE_SECONDS = 60
COUNTED_TIMEOUT_S = 60

Floats = npt.NDArray[np.float64]


class LoadError(Exception):
    """A load run whose figures mean nothing: a failed connection, a refused request, a wrong answer."""


@dataclass(frozen=True)
class Load:
    """What one run saw. `rate` is requests answered per second, latencies are of requests, in microseconds."""

    requests: int
    rate: float
    median_us: float
    p99_us: float


def missing_programs() -> list[str]:
    """Return the Debian packages of the load generators that are not on the PATH."""
    return [package for program, package in DEBIAN_PACKAGES.items() if shutil.which(program) is None]


def wrk(address: str, payload: Payload, body: Path, connections: int, seconds: int) -> Load:
    """Post `payload`, whose bytes are in the file `body`, from one thread over `connections` kept-alive connections.

    Sequences take a thread for each connection: a script of wrk's does not know on which connection it is asked for a
    request. Raises LoadError when any request failed or any status was above 399.
    """
    script, threads = ("sequence.lua", connections) if payload.is_sequence else ("post.lua", 1)
    options = [f"--threads={threads}", f"--connections={connections}", f"--duration={seconds}s", "--timeout=30s"]
    options.append(f"--script={WRK_SCRIPTS / script}")
    headers = [text for header in payload.headers.items() for text in header]
    url = f"http://{address}{payload.path}"
    return wrk_load(run_program(["wrk", *options, url, "--", str(body), *headers], seconds))


def wrk_load(output: str) -> Load:
    """Read what wrk printed, the figures of its script in its last line. Raises LoadError if a request failed."""
    try:
        figures = json.loads(output.splitlines()[-1])
    except (IndexError, ValueError) as error:
        raise LoadError(f"wrk printed no figures:\n{output}") from error
    if figures["bad_status"] or figures["broken"] or not figures["requests"]:
        raise LoadError(f"wrk: {figures}")
    return Load(
        requests=figures["requests"],
        rate=figures["requests"] / figures["microseconds"] * 1e6,
        median_us=figures["median_us"],
        p99_us=figures["p99_us"],
    )


def h2load(address: str, payload: Payload, body: Path, connections: int, requests: int, *, answer_bytes: int) -> Load:
    """Post `payload`, whose bytes are in the file `body`, `requests` times from one thread over `connections`.

    Each connection has one request at a time. `answer_bytes` is the body size of one right answer. Requests are
    counted, not timed, so that none is abandoned halfway: every byte is accounted for, and a single gRPC error, which
    is an HTTP 200 with a body that is empty or too short, raises LoadError, as does a request that failed.
    """
    timings = body.with_suffix(".timings")
    timings.unlink(missing_ok=True)
    options = [f"--clients={connections}", f"--requests={requests}", f"--data={body}", f"--log-file={timings}"]
    # The clients of gRPC's own library raise their limit for large messages in the same way; h2load stays at 16 KiB.
    options.append("--max-frame-size=1M")
    options += [f"--header={name}:{value}" for name, value in payload.headers.items()]
    output = run_program(["h2load", *options, f"http://{address}{payload.path}"], COUNTED_TIMEOUT_S)
    check_h2load(output, requests, answer_bytes)
    started, took = np.loadtxt(timings, usecols=(0, 2), ndmin=2, unpack=True)
    return timed_load(started, took)


def check_h2load(output: str, requests: int, answer_bytes: int) -> None:
    """Raise LoadError unless h2load says that all requests succeeded, with exactly the bytes of as many answers."""
    counts = {name: int(count) for count, name in re.findall(r"(\d+) (succeeded|failed|errored|timeout)\b", output)}
    data = re.search(r"\((\d+)\) data", output)
    if counts.keys() != {"succeeded", "failed", "errored", "timeout"} or data is None:
        raise LoadError(f"h2load printed no figures:\n{output}")
    if counts["succeeded"] != requests or counts["failed"] or counts["errored"] or counts["timeout"]:
        raise LoadError(f"h2load: of {requests} requests {counts}")
    received, right = int(data.group(1)), requests * answer_bytes
    if received != right:
        raise LoadError(f"h2load: {received} bytes in {requests} answers, where right ones have {right}")


def timed_load(started: Floats, took: Floats) -> Load:
    """Return the load of requests that started at these times and took so long, all in microseconds.

    The rate is that of the first nine tenths of the answers: at the end connections run out of requests.
    """
    ended = np.sort(started + took)
    counted = max(1, len(ended) * 9 // 10)
    return Load(
        requests=len(ended),
        rate=float(counted / (ended[counted - 1] - started.min()) * 1e6),
        median_us=float(np.percentile(took, 50)),
        p99_us=float(np.percentile(took, 99)),
    )


def run_program(command: list[str], seconds: int) -> str:
    """Return the output of a program that should take `seconds`. Raises LoadError if it failed or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + GRACE_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise LoadError(f"{command[0]} did not end within {seconds + GRACE_SECONDS} s") from error
    if done.returncode != 0:
        raise LoadError(f"{command[0]} ended with status {done.returncode}: {done.stderr.strip() or done.stdout}")
    return done.stdout
