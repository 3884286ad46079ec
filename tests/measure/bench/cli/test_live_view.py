"""The live view, in a pseudo-terminal."""

import fcntl
import os
import pty
import re
import signal
import struct
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.cells import cell_len

from tests.measure.bench.cli.bench_command import run_bench
from tests.support.models import write_identity
from tests.support.server_process import ConchProcess

pytestmark = pytest.mark.slow

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_HIDE, _SHOW = "\x1b[?25l", "\x1b[?25h"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    folder = tmp_path_factory.mktemp("live")
    write_identity(folder / "models", "echo", "FP32", 4)
    with ConchProcess(folder / "models", log=folder / "log") as process:
        yield process


class Terminal:
    """A command in a terminal of a given width."""

    def __init__(self, columns: int, *arguments: str) -> None:
        size = struct.pack("HHHH", 40, columns, 0, 0)
        controller, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)
        command = [sys.executable, "-m", "conch", "bench", *arguments]
        environment = {**os.environ, "TERM": "xterm-256color"}
        for name in ("COLUMNS", "NO_COLOR", "LINES"):
            environment.pop(name, None)
        actions = [(os.POSIX_SPAWN_DUP2, terminal, stream) for stream in (0, 1, 2)]
        self.pid = os.posix_spawn(command[0], command, environment, file_actions=actions, setsid=False)
        os.close(terminal)
        self._controller = controller
        self.output = ""

    def read_until(self, text: str) -> None:
        """Read until a text was printed."""
        deadline = time.monotonic() + 120
        while text not in self.output:
            assert time.monotonic() < deadline, self.output
            assert self._read(), self.output

    def end(self) -> int:
        """Read to the end; return the exit status."""
        while self._read():
            pass
        os.close(self._controller)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    @property
    def lines(self) -> list[str]:
        """What was printed, without colours and movements."""
        return _CONTROL.sub("", self.output).replace("\r", "\n").split("\n")

    def _read(self) -> bool:
        try:
            piece = os.read(self._controller, 65536)
        except OSError:  # EIO: the last process has closed the terminal
            return False
        self.output += piece.decode("utf-8", "replace")
        return bool(piece)


@pytest.mark.parametrize("columns", [40, 100])
def test_the_screen_fits_the_terminal(server: ConchProcess, columns: int) -> None:
    terminal = Terminal(columns, server.http, "echo", "--concurrency=1,2", "--warm-up=500ms", "--duration=1500ms")
    status = terminal.end()
    assert status in (0, 3), terminal.output
    for text in ("warm-up", "measuring", "requests/s", "p99", "req/s ", "≤", "Ctrl-C", "Concurrency"):
        assert text in terminal.output
    assert max(cell_len(line) for line in terminal.lines) <= columns
    assert terminal.output.count(_SHOW) >= terminal.output.count(_HIDE) >= 1


def test_ctrl_c_restores_the_terminal_and_reports(server: ConchProcess) -> None:
    terminal = Terminal(80, server.http, "echo", "--concurrency=2", "--warm-up=100ms", "--duration=10m")
    terminal.read_until("measuring")
    os.kill(terminal.pid, signal.SIGINT)
    assert terminal.end() == 130, terminal.output
    assert terminal.output.rindex(_SHOW) > terminal.output.rindex(_HIDE)
    assert "interrupted" in terminal.output
    assert "Traceback" not in terminal.output


def test_without_a_terminal_progress_is_lines(server: ConchProcess, tmp_path: Path) -> None:
    done = run_bench(tmp_path, server.http, "echo", "--concurrency=1", "--warm-up=100ms", "--duration=300ms")
    assert "\x1b" not in done.err + done.out
    assert done.err.splitlines()[0].startswith("concurrency 1: ")
