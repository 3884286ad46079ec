"""An exception of a model's, told as Triton tells it."""

from __future__ import annotations

import os
import traceback

_OWN_CODE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - compared with names of frames


def describe(error: BaseException) -> str:
    """Return type, text and where it was raised, innermost call first; calls of this package are left out."""
    text = "{}: {}".format(type(error).__name__, error)
    frames = [
        "  {}({}): {}\n".format(frame.f_code.co_filename, line, frame.f_code.co_name)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith((_OWN_CODE, "<frozen importlib"))
    ]
    return text if not frames else text + "\n\nAt:\n" + "".join(reversed(frames))


def traceback_of(error: BaseException) -> str:
    """Return the traceback as Python prints it, for the log."""
    return "".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip()
