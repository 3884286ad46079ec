"""The command `conch bench` as a process."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TIMEOUT_S = 180
_COMMAND = (sys.executable, "-m", "conch", "bench")


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    status: int
    out: str
    err: str
    document: dict[str, Any]  # of --json, {} without one

    @property
    def measurement(self) -> dict[str, Any]:
        """The only measurement."""
        (only,) = self.document["measurements"]
        return dict(only)

    @property
    def codes(self) -> set[str]:
        """The codes of all notes."""
        notes = [
            *self.document["notes"],
            *(note for measurement in self.document["measurements"] for note in measurement["notes"]),
        ]
        return {note["code"] for note in notes}


class RunningBench:
    """A command in progress; its progress is read from stderr."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.json = folder / "certificate.json"
        self._err = (folder / "err").open("w+")
        self.process = subprocess.Popen(
            [*_COMMAND, *arguments, f"--json={self.json}"],
            stdout=subprocess.PIPE,
            stderr=self._err,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )

    def wait_until_measuring(self) -> None:
        """Return when requests have been answered in the window."""
        deadline = time.monotonic() + _TIMEOUT_S
        while "measuring" not in self.text:
            assert self.process.poll() is None, self.text
            assert time.monotonic() < deadline, self.text
            time.sleep(0.05)

    @property
    def text(self) -> str:
        """What was printed to stderr so far."""
        return Path(self._err.name).read_text()

    def interrupt(self, number: int = signal.SIGINT) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def end(self) -> Done:
        """Wait for the end."""
        try:
            out, _ = self.process.communicate(timeout=_TIMEOUT_S)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            err = self.text
            self._err.close()
        document = json.loads(self.json.read_text()) if self.json.exists() else {}
        return Done(self.process.returncode, out, err, document)


def run_bench(folder: Path, *arguments: str) -> Done:
    """Run the command to its end."""
    return RunningBench(folder, *arguments).end()
