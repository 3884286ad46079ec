"""What the server starts, with an interpreter of its choice:

python_main.py <control fd> <input arena fd> <output arena fd> <instance name>     the process of one model
python_main.py fork <requests fd>        the fork server; see `conch_child.python.fork_server`
"""

from __future__ import annotations

import faulthandler
import gc
import os
import socket
import sys
from pathlib import Path


def main() -> None:
    """Serve one model until the server says or shows that it is over."""
    # At the end of the path, so that names in this folder hide none of the model's.
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [*(path for path in sys.path if path != here), here]
    from conch_child.ipc import heap, prctl, sandbox

    prctl.die_with_parent()
    prctl.renounce_privileges()
    sandbox.confine_if_told()
    heap.keep_freed_memory()
    # A crash in native code leaves its Python stack in the server's log.
    faulthandler.enable()
    # All of what is imported stays, and is shared with forked processes for as long as nobody writes to it.
    gc.disable()

    import triton_python_backend_utils  # noqa: F401 - this one, whatever the model's folder holds
    from conch_child.ipc.arena import ArenaReader, ArenaWriter
    from conch_child.python.channel import Channel
    from conch_child.python.service import MessageLoop

    gc.freeze()
    gc.enable()
    if sys.argv[1] == "fork":
        from conch_child.python.fork_server import next_child

        name, control, inputs, outputs = next_child(socket.socket(fileno=int(sys.argv[2])))
        sys.argv[1:] = [str(control), str(inputs), str(outputs), name]
    else:
        control, inputs, outputs = (int(argument) for argument in sys.argv[1:4])
        os.set_inheritable(control, False)
    channel = Channel(socket.socket(fileno=control), ArenaReader(inputs), ArenaWriter(outputs))
    os.close(inputs)
    os.close(outputs)
    sys.argv[:] = [""]  # as in Triton: a model that reads its arguments finds none
    MessageLoop(channel).run()


if __name__ == "__main__":
    main()
