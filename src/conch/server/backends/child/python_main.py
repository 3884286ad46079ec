"""Entry point of a Python model's process, and of the fork server.

python_main.py <control fd> <input arena fd> <output arena fd> <instance name>     the process of one model
python_main.py fork <requests fd> <modules>        the fork server; see `conch_child.python.fork_server`
"""

from __future__ import annotations

import faulthandler
import gc
import os
import socket
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path


def main() -> None:
    """Run one model until FINALIZE or the end of the connection."""
    # At the end of `sys.path`, so that this folder shadows no module of the model.
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [*(path for path in sys.path if path != here), here]
    from conch_child.ipc import heap, prctl, sandbox

    prctl.die_with_parent()
    prctl.renounce_privileges()
    prctl.set_timer_slack(1)  # by default a model that waits 2 ms for a device by `time.sleep` waits 50 µs more
    sandbox.confine_from_environment()
    heap.keep_freed_memory()
    # Print the Python stack of a crash in native code to the server's log.
    faulthandler.enable()
    # Imported objects stay, in memory that forked processes share unless the garbage collector writes to it.
    gc.disable()

    import triton_python_backend_utils  # noqa: F401 - before a file of that name in the model's folder
    from conch_child.ipc.arena import ArenaReader, ArenaWriter
    from conch_child.ipc.metric_area import AREA_BYTES
    from conch_child.python.channel import Channel
    from conch_child.python.service import MessageLoop

    if sys.argv[1] == "fork":
        for module in sys.argv[3:]:
            with suppress(Exception):  # the model that needs it reports the error
                import_module(module)
    gc.freeze()
    gc.enable()
    if sys.argv[1] == "fork":
        from conch_child.python.fork_server import next_child

        name, control, (inputs, outputs) = next_child(socket.socket(fileno=int(sys.argv[2])))
        sys.argv[1:] = [str(control), str(inputs), str(outputs), name]
    else:
        control, inputs, outputs = (int(argument) for argument in sys.argv[1:4])
        os.set_inheritable(control, False)
    outputs_arena = ArenaWriter(outputs, AREA_BYTES)
    channel = Channel(socket.socket(fileno=control), ArenaReader(inputs), outputs_arena)
    os.close(inputs)
    os.close(outputs)
    sys.argv[:] = [""]  # as in Triton, where models have no arguments
    MessageLoop(channel).run()


if __name__ == "__main__":
    main()
