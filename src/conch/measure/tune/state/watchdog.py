"""A process that restores the models if the tuner dies without doing so: by SIGKILL, or out of memory.

The tuner holds the other end of its stdin. "done" there means that nothing is left to do; the end of the file without
it, that the tuner is dead. Run as `python -m conch.measure.tune.state.watchdog FOLDER RUN`.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from conch.base.control_characters import printable_lines
from conch.measure.tune.repository_client import RepositoryClient, ServerUnreachable
from conch.measure.tune.state.folder import StateFolder
from conch.measure.tune.state.saved_state import restore, saved_state

_DONE = b"done"
_READY = b"ready\n"
_RETRY_S = 1.0
_GIVE_UP_S = 1800.0
_END_TIMEOUT_S = 10.0


class Watchdog:
    """The tuner's side: starts the process, and ends it once the models are restored."""

    def __init__(self, folder: StateFolder, run: str) -> None:
        self._folder = folder
        self._run = run
        self._process: subprocess.Popen[bytes] | None = None
        self._writer = -1
        self._is_hooked = False

    @property
    def pid(self) -> int:
        """The process; 0 before `start`."""
        return self._process.pid if self._process else 0

    def start(self) -> None:
        """Start the process and wait until it watches. Raises OSError."""
        reader, self._writer = os.pipe2(os.O_CLOEXEC)
        if not self._is_hooked:
            # Load generators are forked from the tuner: with their copies the pipe would outlive it.
            os.register_at_fork(after_in_child=self._close_writer)
            self._is_hooked = True
        command = [sys.executable, "-m", "conch.measure.tune.state.watchdog", str(self._folder.path), self._run]
        try:
            with self._folder.watchdog_log.open("ab") as log:
                self._process = subprocess.Popen(
                    command, stdin=reader, stdout=subprocess.PIPE, stderr=log, start_new_session=True
                )
        finally:
            os.close(reader)
        assert self._process.stdout is not None
        with self._process.stdout as stdout:
            if stdout.readline() != _READY:
                raise OSError(f"the watchdog did not start; see {self._folder.watchdog_log}")

    def keep_alive(self) -> None:
        """Start another process if this one has died. Raises OSError."""
        if self._process is not None and self._process.poll() is not None:
            self._close_writer()
            self.start()

    def end(self, *, restored: bool) -> None:
        """End the process; without `restored` it continues the restoration by itself."""
        if self._process is None:
            return
        if restored:
            with suppress(BrokenPipeError):
                os.write(self._writer, _DONE)
        self._close_writer()
        if restored:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_TIMEOUT_S)
        else:
            self._process.returncode = 0  # it outlives this process: no warning
        self._process = None

    def _close_writer(self) -> None:
        if self._writer >= 0:
            os.close(self._writer)
            self._writer = -1


def main(arguments: list[str]) -> int:
    """Watch, and restore if need be; return the exit status."""
    folder, run = StateFolder(Path(arguments[0])), arguments[1]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.write(sys.stdout.fileno(), _READY)
    os.close(sys.stdout.fileno())
    if os.read(sys.stdin.fileno(), len(_DONE)) == _DONE:
        return 0
    _say(f"the tuner of run {run} has ended without restoring its models")
    folder.lock(wait=True)  # a tuner that was started meanwhile restores first
    deadline = time.monotonic() + _GIVE_UP_S
    while (saved := saved_state(folder)) is not None and saved.run == run:
        try:
            failures = restore(RepositoryClient(saved.access), folder, saved, _say)
        except (ServerUnreachable, OSError) as error:  # such as a full disk
            failures = [str(error)]
        for failure in failures:
            _say(failure)
        if failures and time.monotonic() > deadline:
            _say("giving up; conch tune --restore tries again")
            return 1
        time.sleep(_RETRY_S if failures else 0)
    return 0


def _say(text: str) -> None:
    print(time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), printable_lines(text), file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
