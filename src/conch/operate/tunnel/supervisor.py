"""Supervise ssh: start it, probe the exporter through it, and start it again when either fails."""

import asyncio
import logging
import os
import signal
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, time

from conch.base.files.stamps import file_stamp
from conch.base.pacing import backoff_s
from conch.base.process.prctl import die_with_parent
from conch.domain.exposition import Family, Point, pieces
from conch.operate.tunnel.ssh_command import (
    ALL_FAILURES,
    EXPORTER,
    PROBE_TIMEOUT,
    Forward,
    Retry,
    TunnelFailure,
    TunnelSettings,
    failure_of,
    remote_address,
    ssh_command,
)


class TunnelState:
    """Counters of one tunnel. All reasons exist from the start, so that the first failure is an increase."""

    def __init__(self, target: str) -> None:
        self._labels = {"target": target}
        self.up = False
        self.connects = 0
        self.last_connect = 0.0  # Unix time, 0 for never
        self.failures = dict.fromkeys((failure.reason for failure in ALL_FAILURES), 0)

    def count(self, failure: TunnelFailure) -> None:
        """Count a failure."""
        self.failures[failure.reason] += 1

    def exposition(self) -> Iterator[bytes]:
        """Yield the text of a scrape."""
        labels = self._labels
        failures = [Point(count, {**labels, "reason": reason}) for reason, count in self.failures.items()]
        for metric, points in (
            ("conch_tunnel_up", [Point(int(self.up), labels)]),
            ("conch_tunnel_connects_total", [Point(self.connects, labels)]),
            (
                "conch_tunnel_last_connect_timestamp_seconds",
                [Point(self.last_connect, labels)] if self.last_connect else [],
            ),
            ("conch_tunnel_failures_total", failures),
        ):
            yield from pieces(Family.of(metric, points))


class ProbeResult(Enum):
    """What a probe showed."""

    ANSWERED = "answered"  # status 200 and the beginning of a body
    NO_EXPORTER = "no exporter"  # the connection was closed or answered with another status: the tunnel works
    TIMEOUT = "timeout"  # half-dead: connected, but no answer
    NO_FORWARD = "no forward"  # ssh does not listen


async def probe(where: tuple[str, int] | Path, path: str, timeout_s: float) -> ProbeResult:
    """Send a GET of `path` to an address or a Unix socket, and wait for the status and the first byte of the body."""
    try:
        async with asyncio.timeout(timeout_s):
            opened = asyncio.open_unix_connection(where) if isinstance(where, Path) else asyncio.open_connection(*where)
            reader, writer = await opened
            try:
                return await _exchange(reader, writer, path)
            finally:
                writer.transport.abort()
    except TimeoutError:
        return ProbeResult.TIMEOUT
    except OSError:
        return ProbeResult.NO_FORWARD


async def _exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> ProbeResult:
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.read(1)
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
        return ProbeResult.NO_EXPORTER
    status = head.split(b" ", 2)[1:2]
    return ProbeResult.ANSWERED if status == [b"200"] and body else ProbeResult.NO_EXPORTER


_log = logging.getLogger(__name__)

_STOP_TIMEOUT_S = 3.0
_KEY_POLL_S = 1.0
_MAX_MESSAGES = 40
_MAX_LINE_CHARACTERS = 500
_CHUNK_BYTES = 65_536
_INTERACTIVE = "Entering interactive session"
_SUMMARY = ("Transferred:", "Bytes per second:")
_REMOTE_FORWARD = "remote forward success"


class Tunnel:
    """One tunnel. Life: `run`, until it is cancelled; then no process is left."""

    def __init__(self, settings: TunnelSettings, state: TunnelState, random: Callable[[], float]) -> None:
        self._settings = settings
        self._state = state
        self._random = random
        self._failures = 0
        self._connected = asyncio.Event()
        self._connected_at = 0.0

    async def run(self) -> None:
        """Keep the tunnel up. Raises OSError if ssh cannot be started."""
        while True:
            keys = self._key_versions()
            with TemporaryDirectory(prefix="conch-tunnel-") as folder:
                failure, message = await self._connection(Path(folder))
            self._state.up = False
            self._state.count(failure)
            if self._connected.is_set() and monotonic() - self._connected_at >= self._settings.stable_s:
                self._failures = 0
            await self._wait(failure, message, keys)

    async def _connection(self, folder: Path) -> tuple[TunnelFailure, str]:
        """Run ssh until it ends or a probe is lost. Returns why, and ssh's message."""
        self._connected.clear()
        sockets = [
            folder / f"{number}.sock" if forward.reverse and self._settings.probe_path else None
            for number, forward in enumerate(self._settings.forwards)
        ]
        ssh = await asyncio.create_subprocess_exec(
            *ssh_command(self._settings, probe_sockets=sockets),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C", "SSH_ASKPASS_REQUIRE": "never"},
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        messages: deque[str] = deque(maxlen=_MAX_MESSAGES)
        assert ssh.stderr is not None
        reading = asyncio.ensure_future(self._read(ssh.stderr, messages))
        watching = asyncio.ensure_future(self._watch(sockets))
        ending = asyncio.ensure_future(ssh.wait())
        try:
            await asyncio.wait([ending, watching], return_when=asyncio.FIRST_COMPLETED)
            if not ending.done():
                return watching.result(), ""
            await asyncio.wait([reading], timeout=_STOP_TIMEOUT_S)  # a proxy command may keep the pipe open
            return failure_of(messages)
        finally:
            await _stop(ssh)
            for task in (reading, watching, ending):
                task.cancel()
            await asyncio.gather(reading, watching, ending, return_exceptions=True)

    async def _read(self, stderr: asyncio.StreamReader, messages: deque[str]) -> None:
        """Collect the messages of ssh, without its debug output, which shows when the forwards work."""
        reverse = sum(forward.reverse for forward in self._settings.forwards)
        awaited = {_INTERACTIVE: 1, _REMOTE_FORWARD: reverse}
        async for line in _lines(stderr):
            if not line.startswith("debug1:"):
                if line.strip("@ ") and not line.startswith(_SUMMARY):
                    messages.append(line)
                continue
            for event in awaited:
                awaited[event] -= event in line
            if max(awaited.values()) <= 0 and not self._connected.is_set():
                self._on_connect()

    def _on_connect(self) -> None:
        state, settings = self._state, self._settings
        self._connected.set()
        self._connected_at = monotonic()
        state.connects += 1
        state.last_connect = time()
        state.up = not settings.probe_path
        _log.info('tunnel "%s" connected to %s', settings.name, settings.target)

    async def _watch(self, sockets: Sequence[Path | None]) -> TunnelFailure:
        """Probe all forwards until an answer is overdue at each of them."""
        settings, state = self._settings, self._state
        if not settings.probe_path:
            await asyncio.Event().wait()
        await self._connected.wait()
        last: list[ProbeResult] = []
        while True:
            results = await asyncio.gather(
                *(
                    probe(socket or _address(forward), settings.probe_path, settings.probe_timeout_s)
                    for forward, socket in zip(settings.forwards, sockets, strict=True)
                )
            )
            if all(result is ProbeResult.TIMEOUT for result in results):
                return PROBE_TIMEOUT
            state.up = all(result is ProbeResult.ANSWERED for result in results)
            if not state.up:
                state.count(EXPORTER)
            if results != last:
                self._log_results(results)
            last = results
            await asyncio.sleep(settings.probe_interval_s)

    def _log_results(self, results: Sequence[ProbeResult]) -> None:
        for forward, result in zip(self._settings.forwards, results, strict=True):
            if result is ProbeResult.ANSWERED:
                _log.info('tunnel "%s" is up: %s answers', self._settings.name, forward)
            else:
                _log.warning('tunnel "%s": %s: %s (%s)', self._settings.name, forward, EXPORTER.message, result.value)

    async def _wait(self, failure: TunnelFailure, message: str, keys: object) -> None:
        """Log a failure with its remedy, and wait until ssh may be started again."""
        settings = self._settings
        known_hosts = settings.key_files[0]
        host, port = settings.host, settings.ssh_port
        names = {
            "host": host,
            "port": port,
            "entry": host if port == 22 else f"[{host}]:{port}",
            "known_hosts": known_hosts,
            "identity": settings.identity or "the identity file",
        }
        text = f'tunnel "{settings.name}" is down: {failure.message.format(**names)}'
        if failure.remedy:
            text += f"; {failure.remedy.format(**names)}"
        fields = {"fields": {"reason": failure.reason, **({"ssh": message} if message else {})}}
        if failure.retry is Retry.AFTER_CHANGE:
            _log.error("%s; not connecting until one of these files changes: %s", text, _listed(settings), extra=fields)
            while self._key_versions() == keys:  # noqa: ASYNC110 - a file sets no event
                await asyncio.sleep(_KEY_POLL_S)
            return
        self._failures += 1
        first_s = settings.max_backoff_s if failure.retry is Retry.SLOWLY else settings.min_backoff_s
        delay_s = backoff_s(self._failures, first_s, settings.max_backoff_s, self._random())
        _log.warning("%s; retrying in %.1f s", text, delay_s, extra=fields)
        await asyncio.sleep(delay_s)

    def _key_versions(self) -> list[tuple[int, ...]]:
        """Return what changes when a key file is written, replaced or gets other permissions."""
        return [file_stamp(path) for path in self._settings.key_files]


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """Yield lines without blanks at their ends, cut at 500 characters: a host may send a banner of any length."""
    rest = b""
    while chunk := await stream.read(_CHUNK_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        rest = rest[:_CHUNK_BYTES]
        for line in lines:
            yield line.decode(errors="replace").strip()[:_MAX_LINE_CHARACTERS]
    if rest:
        yield rest.decode(errors="replace").strip()[:_MAX_LINE_CHARACTERS]


def _listed(settings: TunnelSettings) -> str:
    return ", ".join(map(str, settings.key_files))


def _address(forward: Forward) -> tuple[str, int]:
    return remote_address(forward), forward.port


async def _stop(ssh: asyncio.subprocess.Process) -> None:
    """End ssh and the processes that it started, such as a proxy command."""
    if ssh.returncode is None:
        with suppress(ProcessLookupError):
            ssh.terminate()
        with suppress(TimeoutError):
            await asyncio.wait_for(ssh.wait(), _STOP_TIMEOUT_S)
    with suppress(ProcessLookupError):
        os.killpg(ssh.pid, signal.SIGKILL)
    await ssh.wait()
