"""Signals during a run of `conch tune`."""

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

from conch.measure.tune.commands.flags import say


@contextmanager
def interruptible() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP as Ctrl-C: the run ends, and the models are restored."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handlers(dict.fromkeys((signal.SIGTERM, signal.SIGHUP), interrupt)):
        yield


@contextmanager
def uninterruptible() -> Iterator[None]:
    """Finish what must not be left half done; SIGKILL remains."""

    def refuse(_number: int, _frame: FrameType | None) -> None:
        say("restoring the models; this ends by itself")

    with _handlers(dict.fromkeys((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), refuse)):
        yield


@contextmanager
def _handlers(handlers: Mapping[signal.Signals, object]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}  # type: ignore[arg-type]
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
