"""The load generators, `wrk` for HTTP/1.1 and `h2load` for gRPC: run one, read what it printed, doubt it."""

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.payloads import Payload

WRK_SCRIPT = Path(__file__).parent / "wrk" / "post.lua"
DEBIAN_PACKAGES = {"wrk": "wrk", "h2load": "nghttp2-client"}
GRACE_SECONDS = 60


class LoadError(Exception):
    """A load run whose figures mean nothing: a failed connection, a refused request, a wrong answer."""


@dataclass(frozen=True)
class Load:
    """What one run saw. `rate` is requests answered per second, latencies are of requests, in microseconds."""

    requests: int
    rate: float
    median_us: float
    p99_us: float


@dataclass(frozen=True)
class Ending:
    """When h2load stops: after `seconds`, abandoning what is in flight, or after `requests`, which take as long."""

    seconds: int
    requests: int | None = None

    @property
    def option(self) -> str:
        """The command-line option that says so."""
        return f"--duration={self.seconds}" if self.requests is None else f"--requests={self.requests}"


def missing_programs() -> list[str]:
    """Return the Debian packages of the load generators that are not on the PATH."""
    return [package for program, package in DEBIAN_PACKAGES.items() if shutil.which(program) is None]


def wrk(address: str, payload: Payload, body: Path, connections: int, seconds: int) -> Load:
    """Post `payload`, whose bytes are in the file `body`, from one thread over `connections` kept-alive connections.

    Raises LoadError when any request failed or any status was above 399.
    """
    options = ["--threads=1", f"--connections={connections}", f"--duration={seconds}s", "--timeout=30s"]
    headers = [text for header in payload.headers.items() for text in header]
    url = f"http://{address}{payload.path}"
    output = _run(["wrk", *options, f"--script={WRK_SCRIPT}", url, "--", str(body), *headers], seconds)
    figures = json.loads(output.splitlines()[-1])
    if figures["bad_status"] or figures["broken"] or not figures["requests"]:
        raise LoadError(f"wrk at {url}: {figures}")
    return Load(
        requests=figures["requests"],
        rate=figures["requests"] / figures["microseconds"] * 1e6,
        median_us=figures["median_us"],
        p99_us=figures["p99_us"],
    )


def h2load(address: str, payload: Payload, body: Path, connections: int, ending: Ending, *, answer_bytes: int) -> Load:
    """Post `payload`, whose bytes are in the file `body`, from one thread, one request at a time on each connection.

    `answer_bytes` is the body size of one right answer. Raises LoadError when a request failed or when the bytes that
    came are fewer than that many right answers have.
    """
    timings = body.with_suffix(".timings")
    timings.unlink(missing_ok=True)
    options = [f"--clients={connections}", ending.option, f"--data={body}", f"--log-file={timings}"]
    # The clients of gRPC's own library raise their limit for large messages in the same way; h2load stays at 16 KiB.
    options.append("--max-frame-size=1M")
    options += [f"--header={name}:{value}" for name, value in payload.headers.items()]
    url = f"http://{address}{payload.path}"
    output = _run(["h2load", *options, url], ending.seconds)
    counts = _h2load_counts(output)
    if counts["failed"] or counts["errored"] or counts["timeout"] or not counts["succeeded"]:
        raise LoadError(f"h2load at {url}: {counts}")
    if counts["data"] < counts["succeeded"] * answer_bytes:
        raise LoadError(
            f"h2load at {url}: {counts['data']} bytes in {counts['succeeded']} answers, of which a right one has "
            f"{answer_bytes}: some were gRPC errors"
        )
    started, took = np.loadtxt(timings, usecols=(0, 2), ndmin=2, unpack=True)
    return Load(
        requests=counts["succeeded"],
        rate=counts["succeeded"] / ((started + took).max() - started.min()) * 1e6,
        median_us=float(np.percentile(took, 50)),
        p99_us=float(np.percentile(took, 99)),
    )


def _h2load_counts(output: str) -> dict[str, int]:
    counts = {name: int(count) for count, name in re.findall(r"(\d+) (succeeded|failed|errored|timeout)\b", output)}
    data = re.search(r"\((\d+)\) data", output)
    if "succeeded" not in counts or data is None:
        raise LoadError(f"h2load printed no figures:\n{output}")
    return {**counts, "data": int(data.group(1))}


def _run(command: list[str], seconds: int) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + GRACE_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise LoadError(f"{command[0]} did not end within {seconds + GRACE_SECONDS} s") from error
    if done.returncode != 0:
        raise LoadError(f"{command[0]} ended with status {done.returncode}: {done.stderr.strip() or done.stdout}")
    return done.stdout
