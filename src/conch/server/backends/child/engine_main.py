"""Entry point of an engine process: engine_main.py <control fd> <instance name>.

Processes that the engine starts by Python's multiprocessing import this file, too.
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
    """Run one engine until STOP or the end of the connection."""
    _find_modules()
    from conch_child.ipc import prctl, sandbox

    prctl.die_with_parent()
    prctl.renounce_privileges()
    sandbox.confine_from_environment()
    faulthandler.enable()
    control = int(sys.argv[1])
    os.set_inheritable(control, False)

    from conch_child.engine.service import serve

    serve(socket.socket(fileno=control))


def die_with_engine() -> None:
    """In a process that an engine started: die with it, and exit without delay."""
    _find_modules()
    from conch_child.ipc import prctl

    prctl.die_with_parent()
    atexit.register(_end_quickly)


def _end_quickly() -> None:
    """Skip the final garbage collection, which takes seconds with PyTorch."""
    gc.freeze()
    # Libraries complain about objects that are not collected.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _find_modules() -> None:
    """Move this folder to the end of `sys.path`, so that it shadows no module of the engine."""
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [*(path for path in sys.path if path != here), here]


if __name__ == "__main__":
    main()
elif __name__ == "__mp_main__":
    die_with_engine()
