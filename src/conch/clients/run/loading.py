"""The loads of `conch run`: their phases and seconds, and the line on the terminal meanwhile.

The process that shows them is not the one that loads: a server forks, so it must have no threads. It writes lines to a
pipe, each a phase or, at the end, host:port, the seconds and the devices of language models.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from select import select
from time import monotonic

from conch.base.command_line.say import spinner_of
from conch.base.control_characters import printable
from conch.base.process.prctl import die_with_parent
from conch.server.repository.namespaces import ModelId

_START, _READY = "starting the server", "ready"
_SHOWN_AFTER_S = 0.5  # of a load
_MIN_SHOWN_S = 0.05  # of a phase
_STOP_S = 10.0
_MAX_READ_BYTES = 1 << 16


class LoadClock:
    """Measures the phases of the loads of a server, from its construction on, and writes them to a pipe if it has one.

    `writer` is the descriptor of the pipe.
    """

    def __init__(self, writer: int | None) -> None:
        self._writer = writer
        self._models = set[ModelId]()
        self._phases = [(_START, monotonic())]

    def enter(self, model: ModelId, phase: str) -> None:
        """Record that the load of a model is in a new phase; "" at its end."""
        self._models.add(model)
        self._phases.append((phase, monotonic()))
        if phase:
            self._write(f"{phase} {printable(str(model))}")

    def ready(self, address: str, devices: str) -> str:
        """Write where the server answers and computes.

        Returns the seconds in all and, if one model was loaded, of each phase.
        """
        (_, began), now = self._phases[0], monotonic()
        seconds = dict[str, float]()
        ends = [*(start for _, start in self._phases[1:]), now]
        for (phase, start), end in zip(self._phases, ends, strict=True):
            seconds[phase] = seconds.get(phase, 0) + end - start
        parts = [f"{phase} {spent:.1f} s" for phase, spent in seconds.items() if phase and spent >= _MIN_SHOWN_S]
        text = f"{now - began:.1f} s" + (f": {', '.join(parts)}" if len(self._models) == 1 and parts else "")
        self._write("\t".join((_READY, address, text, printable(devices))))
        return text

    def _write(self, line: str) -> None:
        if self._writer is not None:
            with suppress(OSError):  # the reader has ended
                os.write(self._writer, f"{line}\n".encode())


class LoadReader:
    """Reads the pipe of a `LoadClock`. `address`, `devices` and `seconds` are "" unless the server became ready."""

    def __init__(self, reader: int) -> None:
        self.address = self.devices = self.seconds = ""
        self.ended = False
        self._reader = reader
        self._rest = ""

    def read(self, timeout_s: float | None = None) -> str:
        """Wait for lines; return the last phase among them, "" after the time-out."""
        if not select([self._reader], [], [], timeout_s)[0]:
            return ""
        data = os.read(self._reader, _MAX_READ_BYTES).decode("utf-8", "replace")
        *lines, self._rest = (self._rest + data).split("\n")
        if lines and lines[-1].startswith(f"{_READY}\t"):
            _, self.address, self.seconds, self.devices = lines.pop().split("\t", 3)
        self.ended = bool(self.address) or not data
        return lines[-1] if lines else ""

    def show(self) -> None:
        """Show on a terminal, until the end, the phase of the load and its time."""
        phase, shown_at = _START, monotonic() + _SHOWN_AFTER_S
        while not self.ended and (left := shown_at - monotonic()) > 0:
            phase = self.read(left) or phase
        if self.ended:
            return
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.table import Column

        console = Console(stderr=True)
        text = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="crop"))
        spinner = SpinnerColumn(spinner_of(console))
        columns = (spinner, text, TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task(phase, total=None)
            while not self.ended:
                phase = self.read() or phase
                progress.update(task, description=phase)


@contextmanager
def shown_loading() -> Iterator[int]:
    """Show the phases of a load in another process; yield the writing end of its pipe."""
    reader, writer = os.pipe()
    display = get_context("fork").Process(target=_show, args=(reader, writer))
    display.start()
    os.close(reader)
    try:
        yield writer
    finally:
        os.close(writer)
        display.join(_STOP_S)
        display.kill()  # no-op after the end


def _show(reader: int, writer: int) -> None:
    die_with_parent()
    os.close(writer)
    with suppress(KeyboardInterrupt):
        LoadReader(reader).show()
