"""Supervise the process that samples the accelerators of one vendor."""

import asyncio
import logging
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Iterator
from contextlib import suppress
from time import monotonic

from conch.base.pacing import backoff_s
from conch.machine.accelerators.collectors import (
    CollectorError,
    CollectorStatus,
    DeviceIdentity,
    VendorSample,
    missing_driver,
    sample_from_json,
)
from conch.machine.accelerators.sampling_process import ABSENT, ERROR, SAMPLE, STARTED

_log = logging.getLogger(__name__)

# A driver takes a few seconds to start a GPU for its first user.
_START_TIMEOUT_S = 30.0
_MIN_TIMEOUT_S = 5.0
_TIMEOUT_INTERVALS = 3
_KILL_TIMEOUT_S = 1.0
_RETRY_ABSENT_S = 300.0
_POLL_INSTALLED_S = 2.0
_FIRST_DELAY_S, _MAX_DELAY_S = 1.0, 60.0
_STABLE_S = 60.0  # a process that lived that long is restarted after the first delay
_MAX_LINE_BYTES = 1 << 20
_MAX_FIELDS = 512  # names of unsupported fields
_MAX_DEVICES = 1024


class Sampler:
    """Samples of one vendor, taken every `interval_s` by a separate process. Life: `start` → `stop`.

    `on_sample` is called with every sample. A process that fails, or that is silent for `timeout_s`, is killed and
    restarted with backoff; meanwhile there is no sample. While the vendor is absent, the process is started again every
    few minutes, and when its driver or tool is installed. `on_absent` is called each time it is found absent.
    """

    def __init__(
        self,
        vendor: str,
        interval_s: float,
        *,
        timeout_s: float | None = None,
        start_timeout_s: float = _START_TIMEOUT_S,
        first_delay_s: float = _FIRST_DELAY_S,
        on_sample: Callable[[VendorSample], None] | None = None,
        on_absent: Callable[[], None] | None = None,
    ) -> None:
        self.vendor = vendor
        self.sample: VendorSample | None = None  # the last one; None while the collector is down
        self.absence = ""  # why the vendor counts as absent; "" if it is present, or not known yet
        self._interval_s = interval_s
        self._timeout_s = timeout_s or max(_MIN_TIMEOUT_S, _TIMEOUT_INTERVALS * interval_s)
        self._start_timeout_s = max(start_timeout_s, self._timeout_s)
        self._first_delay_s = first_delay_s
        self._on_sample = on_sample
        self._on_absent = on_absent
        self._task: asyncio.Task[None] | None = None
        self._process: Process | None = None
        self._failures = 0
        self._error = ""
        self._absent = True  # until the collector has started or failed
        self._duration_s: float | None = None
        self._sampled_at: float | None = None
        self._unsupported: dict[str, int] = {}
        self._devices: dict[tuple[str, str], DeviceIdentity] = {}  # all that were ever sampled, by index and parent

    def start(self) -> None:
        """Start sampling."""
        self._task = asyncio.create_task(self._supervise())

    async def stop(self) -> None:
        """Kill the process and stop."""
        task, self._task = self._task, None
        while task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=2 * _KILL_TIMEOUT_S)

    def status(self) -> CollectorStatus | None:
        """Return the state of the collector, None if the vendor is absent."""
        if self._absent and self._sampled_at is None:
            return None
        age = None if self._sampled_at is None else monotonic() - self._sampled_at
        return CollectorStatus(
            self.vendor, self.sample is not None, self._duration_s, age, self._unsupported, self._error
        )

    def devices(self) -> Iterator[tuple[DeviceIdentity, bool]]:
        """Yield the devices that were sampled at any time, and whether the last sample has values of each.

        While the collector is down, nothing is known of the devices and none is returned.
        """
        if self.sample is None:
            return
        answering = {_key(device.device) for device in self.sample.devices if "lost" not in device.attributes}
        for key, device in self._devices.items():
            yield device, key in answering

    async def _supervise(self) -> None:
        while True:
            began = monotonic()
            missing = missing_driver(self.vendor)
            try:
                absent = bool(missing) or await self._run()
            finally:
                self.sample = None
                await self._kill()
            if absent:
                self._absent = True
                self.absence = missing or self.absence
                if self._on_absent is not None:
                    self._on_absent()
                await self._wait_for_driver(bool(missing))
                continue
            self._absent = False
            if monotonic() - began >= _STABLE_S:
                self._failures = 0
            self._failures += 1
            delay = backoff_s(self._failures, self._first_delay_s, _MAX_DELAY_S)
            _log.warning(
                "the collector of %s accelerators failed: %s; restarting in %g s", self.vendor, self._error, delay
            )
            await asyncio.sleep(delay)

    async def _wait_for_driver(self, missing: bool) -> None:
        """Wait until the driver or tool is installed, or some minutes if it is and finds no device."""
        if not missing:
            await asyncio.sleep(_RETRY_ABSENT_S)
        while missing and missing_driver(self.vendor):  # noqa: ASYNC110  # no event: the file system is polled
            await asyncio.sleep(_POLL_INSTALLED_S)

    async def _run(self) -> bool:
        """Run one process until it ends or must be killed. Returns whether the vendor is absent."""
        command = [
            sys.executable,
            "-m",
            "conch.machine.accelerators.sampling_process",
            self.vendor,
            repr(self._interval_s),
        ]
        try:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, limit=_MAX_LINE_BYTES, start_new_session=True
            )
        except OSError as error:
            self._error = f"its process cannot start: {error.strerror}"
            return False
        self._process = process
        assert process.stdout is not None
        assert process.stderr is not None
        last_words = asyncio.create_task(_last_line(process.stderr))
        try:
            return await self._read(process.stdout)
        except TimeoutError:
            self._error = "it does not respond; the driver or tool hangs"
        except CollectorError as error:
            self._error = str(error)
        except EOFError:
            # Not by wait_for, which in Python 3.11 may lose a cancellation.
            with suppress(TimeoutError):
                async with asyncio.timeout(_KILL_TIMEOUT_S):
                    status = await process.wait()
                    words = await last_words
                if status != 1 or not self._error:
                    self._error = f"its process exited with status {status}" + (f": {words}" if words else "")
        finally:
            last_words.cancel()
        return False

    async def _read(self, lines: asyncio.StreamReader) -> bool:
        """Read lines until the vendor is absent. Raises TimeoutError, EOFError, CollectorError."""
        timeout_s = self._start_timeout_s
        self._error = ""
        while True:
            try:
                async with asyncio.timeout(timeout_s):
                    line = await lines.readline()
            except ValueError as error:
                raise CollectorError(f"its sample exceeds {_MAX_LINE_BYTES} bytes") from error
            if not line.endswith(b"\n"):
                raise EOFError
            kind, _, content = line.rstrip().partition(b" ")
            if kind == ABSENT:
                self.absence = content.decode(errors="replace")
                return True
            self._absent, self.absence = False, ""
            timeout_s = self._timeout_s
            if kind == SAMPLE:
                self._accept(content)
            elif kind == ERROR:
                self.sample = None
                self._error = content.decode(errors="replace")
            elif kind != STARTED:
                raise CollectorError(f"malformed line {line[:80]!r}")

    def _accept(self, content: bytes) -> None:
        duration, _, document = content.partition(b" ")
        sample = sample_from_json(document)
        try:
            self._duration_s = float(duration)
        except ValueError as error:
            raise CollectorError(f"malformed duration {duration[:80]!r}") from error
        self._sampled_at = monotonic()
        self._error = ""
        self.sample = sample
        if self._on_sample is not None:
            self._on_sample(sample)
        for device in sample.devices:
            key = _key(device.device)
            if key in self._devices or len(self._devices) < _MAX_DEVICES:
                # A device that was lost before the process started has no UUID.
                self._devices[key] = device.device if device.device.uuid else self._devices.get(key, device.device)
            for name in device.unsupported:
                if name in self._unsupported or len(self._unsupported) < _MAX_FIELDS:
                    self._unsupported[name] = self._unsupported.get(name, 0) + 1

    async def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            process.kill()
        # A process that hangs in the driver exits only when the driver returns; it is not waited for.
        with suppress(TimeoutError):
            async with asyncio.timeout(_KILL_TIMEOUT_S):
                await process.wait()


def _key(device: DeviceIdentity) -> tuple[str, str]:
    return device.index, device.parent_uuid


async def _last_line(stream: asyncio.StreamReader) -> str:
    """Read a stream to its end and return its last line, shortened."""
    kept = b""
    while chunk := await stream.read(1 << 16):
        kept = (kept + chunk)[-1000:]
    lines = kept.decode(errors="replace").strip().splitlines()
    return lines[-1][:200] if lines else ""
