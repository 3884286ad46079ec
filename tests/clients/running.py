"""A real `conch run` in a separate process, with folders for its state and its models."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.ports import free_port

END = "Ctrl-C stops the server"
TIMEOUT_S = 60
ASCII_ONLY = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def environment(home: Path, **more: str) -> dict[str, str]:
    """The environment of a user with this home."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "CONCH_", "HF_"))}
    return {**kept, "HOME": str(home), **more}


def conch(home: Path, *arguments: str, text: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "conch", *arguments],
        input=text,
        env=environment(home, **more),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


class Running:
    """Use as a context manager: inside, the model is ready and `text` is what was printed.

    `prefix` is a program that runs the command.
    """

    def __init__(
        self, home: Path, *arguments: str, port: int | None = None, prefix: Sequence[str] = (), **more: str
    ) -> None:
        self.port = free_port() if port is None else port
        self._prefix = prefix
        self._arguments = ["run", *arguments, f"--port={self.port}", "--serve"]
        self._environment = environment(home, **more)
        self._errors = home / f"errors-{self.port}-{len(list(home.iterdir()))}"
        self.text = ""

    @property
    def started(self) -> bool:
        """Whether the process was started, so that `errors` can be read."""
        return self._errors.exists()

    @property
    def errors(self) -> str:
        """What was written to stderr."""
        return self._errors.read_text()

    @property
    def url(self) -> str:
        """The URL of the HTTP port."""
        return next(line.split()[1] for line in self.text.splitlines() if line.startswith("URL"))

    @property
    def curl(self) -> str:
        """The printed line for a shell."""
        return next(line for line in self.text.splitlines() if "curl -s" in line)

    @property
    def python(self) -> str:
        """The printed program."""
        return self.text[self.text.index("import json") : self.text.index(END)]

    def __enter__(self) -> Self:
        command = [*self._prefix, sys.executable, "-m", "conch", *self._arguments]
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                command, env=self._environment, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.text += line
            if END in line:
                return self
        self.process.communicate()
        raise AssertionError(f"the server ended: {self.text}\n{self.errors}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.terminate()
        self.process.communicate(timeout=TIMEOUT_S)


def printed_by(command: list[str] | str) -> str:
    """What a command line of a plate prints."""
    result = subprocess.run(command, shell=isinstance(command, str), capture_output=True, text=True, timeout=TIMEOUT_S)
    assert result.returncode == 0, result.stderr
    return result.stdout
