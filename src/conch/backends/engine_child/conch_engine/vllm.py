"""vLLM in a process of its own: what has to be settled before it is imported, and how that process ends.

vLLM has processes of its own in turn, for its core and its workers. They end with this one: `main.py` sees to it where
they are started anew, as on CPUs, a hook of `fork` where they are copies.
"""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from conch_child import prctl
from conch_child.wire import FrameDecoder, Message

from . import async_loop

# What the environment says and nobody set: that nothing is reported to anybody.
_ENVIRONMENT = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}


def serve(connection: socket.socket, decoder: FrameDecoder, backlog: list[Message], options: dict[str, Any]) -> None:
    """Load the model and run it until the server ends the connection or says STOP."""
    os.register_at_fork(after_in_child=prctl.die_with_parent)
    for name, value in {**_ENVIRONMENT, "VLLM_RPC_BASE_PATH": options["scratch"]}.items():
        os.environ.setdefault(name, value)
    from .vllm_engine import VllmEngine

    async_loop.serve(connection, decoder, backlog, lambda writer: VllmEngine(writer, options))
    sys.stdout.flush()
    os._exit(0)  # taking PyTorch apart takes the interpreter seconds


def shared_memory() -> tuple[str, ...]:
    """Return the names of the shared memory of this process and those below it."""
    lines = (line for pid in _family(os.getpid()) for line in _read(f"/proc/{pid}/maps").splitlines())
    paths = {Path(line.split(maxsplit=5)[-1]) for line in lines if "/dev/shm/" in line}  # noqa: S108 - Linux's place
    return tuple(path.name for path in paths if path.exists())


def _family(pid: int) -> list[int]:
    children = (child for task in Path(f"/proc/{pid}/task").glob("*") for child in _read(f"{task}/children").split())
    return [pid, *(each for child in children for each in _family(int(child)))]


def _read(path: str) -> str:
    """Return what a file of /proc says, nothing if the process or thread has ended meanwhile."""
    with suppress(OSError):
        return Path(path).read_text()
    return ""
