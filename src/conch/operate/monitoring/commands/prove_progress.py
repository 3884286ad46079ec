"""Progress of `conch rules prove`: a bar on a terminal, else a line every few seconds."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

_LINE_INTERVAL_S = 5


@contextmanager
def proof_progress(total: int) -> Iterator[Callable[[str], None]]:
    """Yield a function to call with the name of each rule that is done. Writes to stderr."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _line_writer(total)
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda name: progress.update(task, advance=1, description=name)


def _line_writer(total: int) -> Callable[[str], None]:
    done, written_s = 0, time.monotonic()

    def advance(name: str) -> None:
        nonlocal done, written_s
        done += 1
        if done < total and time.monotonic() - written_s >= _LINE_INTERVAL_S:
            written_s = time.monotonic()
            print(f"{done} of {total} rules proved, {name} last", file=sys.stderr, flush=True)

    return advance
