"""Prepare a process for vLLM before it is imported, and exit it without delay.

vLLM starts processes for its core and workers. They end with this one: spawned ones, as on CPUs, by
`engine_main.die_with_engine`, forked ones by a fork hook.
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from typing import Any

from ...ipc import prctl
from ...ipc.wire import FrameDecoder, Message
from .. import async_loop

# No usage reports, unless the environment says otherwise.
_DEFAULT_ENVIRONMENT = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}


def serve(connection: socket.socket, decoder: FrameDecoder, backlog: list[Message], options: dict[str, Any]) -> None:
    """Load the model and run it until STOP or the end of the connection."""
    os.register_at_fork(after_in_child=prctl.die_with_parent)
    # A sandboxed process can only write to its folder for temporary files.
    scratch = options["scratch"] if os.access(options["scratch"], os.W_OK) else tempfile.gettempdir()
    for name, value in {**_DEFAULT_ENVIRONMENT, "VLLM_RPC_BASE_PATH": scratch}.items():
        os.environ.setdefault(name, value)
    from .engine import VllmEngine

    async_loop.serve(connection, decoder, backlog, lambda writer: VllmEngine(writer, {**options, "scratch": scratch}))
    sys.stdout.flush()
    os._exit(0)  # the interpreter's finalization takes seconds with PyTorch
