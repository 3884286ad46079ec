"""Format exceptions of models for responses and the log."""

from __future__ import annotations

import importlib
import traceback
from pathlib import Path
from typing import Tuple

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


def place_of(error: BaseException) -> Tuple[str, int]:
    """Return file name and line of the last of the model's own frames, for the log."""
    frames = [
        (Path(frame.f_code.co_filename), line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith(_OMITTED)
    ]
    if not frames:
        return "model.py", 0
    folder = frames[0][0].parent  # libraries that the model calls are elsewhere
    path, line = [frame for frame in frames if folder in frame[0].parents][-1]
    return path.name, line


def traceback_of(error: BaseException) -> str:
    """Return the traceback as Python prints it."""
    return shortened("".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip())
