"""What the server starts for an engine: engine_main.py <control fd> <instance name>.

Processes that an engine starts in turn, by Python's multiprocessing, read this file, too.
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
import os
import socket
import sys
from pathlib import Path


def main() -> None:
    """Run one engine until the server says or shows that it is over."""
    _find_modules()
    from conch_child.ipc import prctl, sandbox

    prctl.die_with_parent()
    prctl.renounce_privileges()
    sandbox.confine_if_told()
    faulthandler.enable()
    control = int(sys.argv[1])
    os.set_inheritable(control, False)

    from conch_child.engine.service import serve

    serve(socket.socket(fileno=control))


def follow() -> None:
    """Live no longer than the process that has started this one, which is an engine's, and end without delay."""
    _find_modules()
    from conch_child.ipc import prctl

    prctl.die_with_parent()
    atexit.register(_end_quickly)


def _end_quickly() -> None:
    """Keep the interpreter from looking for garbage among all there is at its end: with PyTorch it takes seconds."""
    gc.freeze()
    # Libraries complain of what is not garbage then.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _find_modules() -> None:
    """Put this folder at the end of the path, where its names hide none of the engine's."""
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [*(path for path in sys.path if path != here), here]


if __name__ == "__main__":
    main()
elif __name__ == "__mp_main__":
    follow()
