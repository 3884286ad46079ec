"""vLLM in a process of its own: what has to be settled before it is imported, and how that process ends.

vLLM has processes of its own in turn, for its core and its workers. They end with this one: `main.py` sees to it where
they are started anew, as on CPUs, a hook of `fork` where they are copies.
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from typing import Any

from ..ipc import prctl
from ..ipc.wire import FrameDecoder, Message
from . import async_loop

# What the environment says and nobody set: that nothing is reported to anybody.
_ENVIRONMENT = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}


def serve(connection: socket.socket, decoder: FrameDecoder, backlog: list[Message], options: dict[str, Any]) -> None:
    """Load the model and run it until the server ends the connection or says STOP."""
    os.register_at_fork(after_in_child=prctl.die_with_parent)
    # In a sandbox, there is one folder to write to.
    scratch = options["scratch"] if os.access(options["scratch"], os.W_OK) else tempfile.gettempdir()
    for name, value in {**_ENVIRONMENT, "VLLM_RPC_BASE_PATH": scratch}.items():
        os.environ.setdefault(name, value)
    from .vllm_engine import VllmEngine

    async_loop.serve(connection, decoder, backlog, lambda writer: VllmEngine(writer, options))
    sys.stdout.flush()
    os._exit(0)  # taking PyTorch apart takes the interpreter seconds
