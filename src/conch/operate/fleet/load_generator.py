"""The load of a fleet: a profile of clients over time, the child process with the official client, and its counts."""

import asyncio
import json
import re
import sys
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from time import monotonic
from typing import Any, Literal

from conch.base.errors import ConfigError, Unavailable
from conch.operate.fleet.child import Child

ClientProtocol = Literal["grpc", "http"]
_TICK_S = 0.1
_STOP_TIMEOUT_S = 120.0
_END_TIMEOUT_S = 2.0
_MAX_LINE_BYTES = 16 * 1024 * 1024
_STAGE = re.compile(r"(\d+(?:\.\d+)?)(s|m):(\d+)")
_MAX_CLIENTS = 500


@dataclass(frozen=True, slots=True)
class LoadStage:
    """A number of clients for a duration. Each sends a request when the answer to its previous one has come."""

    duration_s: float
    clients: int


@dataclass(frozen=True, slots=True)
class LoadProfile:
    """Stages, one after another."""

    stages: Sequence[LoadStage]

    @property
    def duration_s(self) -> float:
        """The duration of all stages."""
        return sum(stage.duration_s for stage in self.stages)

    @property
    def peak(self) -> int:
        """The highest number of clients."""
        return max(stage.clients for stage in self.stages)

    def clients_at(self, elapsed_s: float) -> int:
        """Return the number of clients; after the end that of the last stage."""
        ends = accumulate(load_stage.duration_s for load_stage in self.stages)
        for stage, end in zip(self.stages, ends, strict=True):
            if elapsed_s < end:
                return stage.clients
        return self.stages[-1].clients


def parse_profile(text: str) -> LoadProfile:
    """Return the profile of a text. Raises ConfigError."""
    matches = [_STAGE.fullmatch(part.strip()) for part in text.split(",")]
    stages = [LoadStage(float(match[1]) * (60 if match[2] == "m" else 1), int(match[3])) for match in matches if match]
    if len(stages) < len(matches) or any(not stage.duration_s or stage.clients > _MAX_CLIENTS for stage in stages):
        raise ConfigError(
            f"'{text}' is not a valid load profile: stages of a duration and at most {_MAX_CLIENTS} clients, "
            "such as 15s:1,60s:10,20s:1"
        )
    return LoadProfile(stages)


@dataclass(frozen=True, slots=True)
class RecentAnswers:
    """Answers of the last seconds. Percentiles are seconds, None without an answer."""

    rate: float
    p50_s: float | None
    p99_s: float | None


def recent(latencies: list[float], window_s: float) -> RecentAnswers:
    """Return the rate and the percentiles (nearest rank) of the answers of a window."""
    if not latencies:
        return RecentAnswers(0.0, None, None)
    ordered = sorted(latencies)
    return RecentAnswers(len(ordered) / window_s, *(ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.99)))


class LoadGenerator:
    """Clients as a profile has them. Life: `start`, `run` until the profile ends, `stop`."""

    def __init__(
        self, profile: LoadProfile, protocol: ClientProtocol, address: str, model: str, folder: Path, window_s: float
    ) -> None:
        """Percentiles are of the last `window_s`."""
        self.profile = profile
        command = [sys.executable, "-m", "conch.operate.fleet.load_client", protocol, address, model]
        self._child = Child(command, folder / "load.log", pipes=True)
        self._window_s = window_s
        self._answers: deque[tuple[float, float]] = deque()
        self._reading: asyncio.Task[None] | None = None
        self.clients = 0
        self.sent = self.answered = self.failed = 0
        self.errors: Mapping[str, int] = Counter()

    @property
    def lost(self) -> int:
        """Requests without a successful answer, after `stop`."""
        return self.sent - self.answered

    @property
    def recent(self) -> RecentAnswers:
        """The answers of the last seconds."""
        while self._answers and self._answers[0][0] < monotonic() - self._window_s:
            self._answers.popleft()
        return recent([latency for _, latency in self._answers], self._window_s)

    async def start(self) -> None:
        """Start the process, without clients."""
        await self._child.start()
        self._reading = asyncio.ensure_future(self._read())

    async def run(self) -> None:
        """Follow the profile. Raises Unavailable if the process ends."""
        started = monotonic()
        while monotonic() - started < self.profile.duration_s:
            await self._set_clients(self.profile.clients_at(monotonic() - started))
            await asyncio.sleep(_TICK_S)

    async def stop(self) -> None:
        """Wait for the answers in flight, and end the process."""
        if self._reading is None:
            return
        stdin = self._child.process.stdin
        assert stdin is not None
        stdin.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._reading), _STOP_TIMEOUT_S)
        await self._child.stop(_END_TIMEOUT_S)
        self._reading.cancel()

    async def _set_clients(self, clients: int) -> None:
        if self._child.status is not None:
            raise Unavailable(f"the load generator ended with status {self._child.status}: {self._child.tail.strip()}")
        if clients != self.clients:
            self.clients = clients
            stdin = self._child.process.stdin
            assert stdin is not None
            stdin.write(f"{clients}\n".encode())
            await stdin.drain()

    async def _read(self) -> None:
        stdout = self._child.process.stdout
        assert stdout is not None
        buffer = b""
        while chunk := await stdout.read(_MAX_LINE_BYTES):
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in lines:
                self._count(json.loads(line))

    def _count(self, report: Mapping[str, Any]) -> None:
        self.sent, self.answered, self.failed = report["sent"], report["answered"], report["failed"]
        self.errors = report["errors"]
        self._answers.extend((monotonic(), latency) for latency in report["latencies"])
