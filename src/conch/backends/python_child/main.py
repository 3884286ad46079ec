"""Started by the server: `python main.py <control fd> <input arena fd> <output arena fd> <instance name>`."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import socket
import sys
from pathlib import Path


def main() -> None:
    """Serve one model until the server says or shows that it is over."""
    _die_with_the_server()
    # A crash in native code leaves its Python stack in the server's log.
    faulthandler.enable()
    # At the end of the path, so that names in this folder hide none of the model's.
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [*(path for path in sys.path if path != here), here]

    import triton_python_backend_utils  # noqa: F401 - this one, whatever the model's folder holds
    from conch_child.arena import ArenaReader, ArenaWriter
    from conch_child.channel import Channel
    from conch_child.service import Service

    control, inputs, outputs = (int(argument) for argument in sys.argv[1:4])
    os.set_inheritable(control, False)
    channel = Channel(socket.socket(fileno=control), ArenaReader(inputs), ArenaWriter(outputs))
    os.close(inputs)
    os.close(outputs)
    Service(channel).run()


def _die_with_the_server() -> None:
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


if __name__ == "__main__":
    main()
