"""Format exceptions of models for responses and the log."""

from __future__ import annotations

import importlib
import traceback
from pathlib import Path

from ..ipc.wire import shortened

# Frames of this package and the import machinery are omitted.
_OMITTED = (str(Path(__file__).resolve().parents[1]), importlib.__file__, "<frozen importlib")


def describe(error: BaseException) -> str:
    """Return type, message and stack as Triton formats them, innermost call first."""
    text = shortened("{}: {}".format(type(error).__name__, str(error) or "<EMPTY MESSAGE>"))
    frames = [
        "  {}({}): {}\n".format(frame.f_code.co_filename, line, frame.f_code.co_name)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith(_OMITTED)
    ]
    return text if not frames else shortened(text + "\n\nAt:\n" + "".join(reversed(frames)))


def traceback_of(error: BaseException) -> str:
    """Return the traceback as Python prints it."""
    return shortened("".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip())
