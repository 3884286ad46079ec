"""`conch run --reload` before a model is served: another attempt when its files change."""

import os
import sys
import time
from pathlib import Path

from conch.base.command_line.say import say
from conch.base.control_characters import printable
from conch.server.repository.watch import Fingerprint, fingerprint, stamps_of

_POLL_S = 0.2


def run_again_after_change(model: str, before: Fingerprint) -> None:
    """Begin this program afresh when the files of a model differ from `before`, which `files_of` returned.

    Returns at once if there are none: a URL, or a path that does not exist.
    """
    if not before:
        return
    say(f"waiting for changes of {printable(model)}; Ctrl-C ends")
    while files_of(model) in (before, ()):  # editors delete a file before they write it
        time.sleep(_POLL_S)
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606


def files_of(model: str) -> Fingerprint:
    """Return the fingerprint of a folder, or of a file and, for Python, the modules beside it; () if neither exists."""
    path = Path(model)
    if path.is_dir():
        return fingerprint(path)
    if not path.is_file():
        return ()
    paths = {path, *path.parent.glob("*.py")} if path.suffix == ".py" else {path}
    return stamps_of(map(str, paths))
