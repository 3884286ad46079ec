"""What one process of the load generator does of a plan."""

from array import array
from collections.abc import Sequence
from typing import Final

from conch.measure.bench.prepared_request import ScriptSource

UNLIMITED: Final = -1


class LoadShare:
    """The share of process number `process` of `processes`. Times are nanoseconds."""

    __slots__ = (
        "connect_timeout_ns",
        "connections",
        "initial_connections",
        "open_loop",
        "process",
        "processes",
        "request_indexes",
        "requests",
        "source",
        "think_ns",
        "timeout_ns",
        "times_ns",
        "users",
    )  # fmt: skip

    def __init__(
        self,
        process: int,
        processes: int,
        source: ScriptSource,
        *,
        users: int,
        think_ns: int,
        open_loop: bool,
        times_ns: "array[int]",
        request_indexes: "array[int] | None",
        connections: int,
        initial_connections: int,
        requests: int,
        timeout_ns: int,
        connect_timeout_ns: int,
    ) -> None:
        """Assign. `users` and `think_ns` are of a closed loop, `times_ns` from its start and indexes of an open one."""
        self.process = process
        self.processes = processes
        self.source = source
        self.users = users
        self.think_ns = think_ns
        self.open_loop = open_loop
        self.times_ns: Sequence[int] = times_ns
        self.request_indexes: Sequence[int] | None = request_indexes
        self.connections = connections  # at most
        self.initial_connections = initial_connections
        self.requests = requests  # UNLIMITED, or the number after which it ends
        self.timeout_ns = timeout_ns
        self.connect_timeout_ns = connect_timeout_ns
