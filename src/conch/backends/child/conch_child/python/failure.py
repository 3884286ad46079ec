"""An exception of a model's, told as Triton tells it."""

from __future__ import annotations

import importlib
import traceback
from pathlib import Path

# Files whose frames tell a model's author nothing: this package, and the import machinery.
_SILENT = (str(Path(__file__).resolve().parents[1]), importlib.__file__, "<frozen importlib")


def describe(error: BaseException) -> str:
    """Return type, text and where it was raised, innermost call first; calls of this package are left out."""
    text = "{}: {}".format(type(error).__name__, error)
    frames = [
        "  {}({}): {}\n".format(frame.f_code.co_filename, line, frame.f_code.co_name)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith(_SILENT)
    ]
    return text if not frames else text + "\n\nAt:\n" + "".join(reversed(frames))


def traceback_of(error: BaseException) -> str:
    """Return the traceback as Python prints it, for the log."""
    return "".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip()
