"""Child processes of the fleet: programs on PATH, their output in files, ended with the fleet even if it is killed."""

import asyncio
import os
import shutil
import signal
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from conch.base.errors import ConfigError
from conch.base.process.prctl import die_with_parent

_TAIL_CHARACTERS = 2000
# Debian has servers in /usr/sbin, which is not on every user's PATH.
_SEARCH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"])


class Child:
    """One run of a program. Life: `start` → `stop` or `kill`."""

    def __init__(self, command: Sequence[str], log: Path, *, pipes: bool = False) -> None:
        """With `pipes` the caller writes stdin and reads stdout; the log has stderr only."""
        self._command = command
        self.log = log
        self._pipes = pipes
        self._process: asyncio.subprocess.Process | None = None

    @property
    def started(self) -> bool:
        """Whether there is, or was, a process."""
        return self._process is not None

    @property
    def process(self) -> asyncio.subprocess.Process:
        """The process, after `start`."""
        assert self._process is not None, "not started"
        return self._process

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    @property
    def status(self) -> int | None:
        """The exit status, None before the end."""
        return None if self._process is None else self._process.returncode

    @property
    def tail(self) -> str:
        """The end of the log."""
        return self.log.read_text(errors="replace")[-_TAIL_CHARACTERS:] if self.log.exists() else ""

    async def start(self) -> None:
        """Start the program in a separate session, so that Ctrl-C reaches the fleet only. Raises OSError."""
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE if self._pipes else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE if self._pipes else log,
                stderr=log,
                env={**os.environ, "NO_COLOR": "1"},
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if the process still runs."""
        if self._process is not None and self.status is None:
            with suppress(ProcessLookupError):
                # Process.send_signal polls: it takes the exit status of a process that has just ended from asyncio.
                os.kill(self._process.pid, number)

    async def wait(self) -> int:
        """Return the exit status when the process has ended."""
        return await self.process.wait()

    async def stop(self, timeout_s: float) -> int:
        """Send SIGTERM, after `timeout_s` SIGKILL, to what is left of the session. Returns the exit status."""
        self.signal(signal.SIGTERM)
        with suppress(TimeoutError):
            await asyncio.wait_for(self.process.wait(), timeout_s)
        return await self.kill()

    async def kill(self) -> int:
        """Kill the session, and return the exit status."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        return await self.process.wait()


def find_programs(names: Iterable[str]) -> Mapping[str, str]:
    """Return the paths of programs, whose names are those of Debian's packages. Raises ConfigError."""
    paths = {name: shutil.which(name, path=_SEARCH) for name in names}
    if missing := [name for name, path in paths.items() if path is None]:
        raise ConfigError(
            f"{' and '.join(missing)} not found on PATH; on Debian and Ubuntu: apt-get install {' '.join(missing)}"
        )
    return {name: str(path) for name, path in paths.items()}
