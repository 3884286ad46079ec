"""The worker process: runs one job after another until the server closes the connection.

Started as `python -m conch.server.frontends.offload.worker <descriptor> <memory limit in bytes> <niceness>`, with an
environment that holds no secrets. A job that takes too long, or too much memory, costs this process and nothing else.
"""

import math
import os
import resource
import socket
import sys
import time
import traceback
from contextlib import suppress

from conch.base.errors import ConchError, InvalidRequest
from conch.server.backends.child.conch_child.ipc import prctl
from conch.server.frontends.offload import jobs
from conch.server.frontends.offload.wire import READY, FrameTooLarge, WorkerConnection, WorkerWireError


def main(descriptor: int, memory_bytes: int, niceness: int) -> None:
    """Serve the connection until it ends."""
    prctl.die_with_parent()
    prctl.renounce_privileges()
    with suppress(OSError):
        os.nice(niceness)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    connection = WorkerConnection(socket.socket(fileno=descriptor))
    connection.send_byte(READY)
    with suppress(WorkerWireError, OSError):
        while True:
            head, parts = connection.receive()
            _limit_cpu(head["cpu_s"])
            try:
                meta, answer = jobs.run(head["job"], head["args"], parts)
            except ConchError as error:
                connection.send({"error": jobs.describe(error)}, [])
            except MemoryError:
                refusal = InvalidRequest("the message needs more memory than a single message may take")
                connection.send({"error": jobs.describe(refusal)}, [])
            except Exception:
                traceback.print_exc()
                connection.send({"error": jobs.describe(ConchError("internal error"))}, [])
            else:
                try:
                    connection.send({"meta": meta}, answer)
                except FrameTooLarge:
                    refusal = InvalidRequest("the message has too many parts, or a text in it is too long")
                    connection.send({"error": jobs.describe(refusal)}, [])
            _limit_cpu(None)
            del head, parts


def _limit_cpu(seconds: float | None) -> None:
    """End this process by SIGXCPU once it has used so much more processor time, rounded up; None removes the limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    limit = hard if seconds is None else math.ceil(time.process_time() + seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
