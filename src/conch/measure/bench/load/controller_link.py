"""The socket pair between the controller and a process of the load generator."""

import json
import socket
import struct
import time
from collections import deque

from conch.measure.bench.load.delays import CpuWaits

# Bytes of JSON, of rows of RECORD, and of rows of CHUNK that follow.
FRAME_HEAD = struct.Struct("=IQQ")

_RECEIVE_BYTES = 65_536


class ControllerLink:
    """The end that a process of the generator has. It never blocks but in `flush_blocking`."""

    def __init__(self, sock: socket.socket, pauses: "GcPauses") -> None:
        """`pauses` are reported with the rest."""
        sock.setblocking(False)
        self._sock = sock
        self._pauses = pauses
        self._unsent: deque[memoryview] = deque()
        self._commands = b""
        self.fd = sock.fileno()
        self.blocked = False  # whether `flush` is to be called when the socket is writable
        self.broken = False  # whether the controller has gone

    def commands(self) -> list[tuple[str, int]]:
        """Return the commands that have arrived: ("go", time of the start) and ("stop", grace), in nanoseconds."""
        try:
            data = self._sock.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self.broken = True
        *lines, self._commands = (self._commands + data).split(b"\n")
        return [(name, value) for name, value in map(json.loads, lines)]

    def ready(self, connections: int, cause: str) -> None:
        """Report that the first connections are open, or why not."""
        self._put({"ready": connections, "cause": cause}, b"", b"")

    def report(
        self,
        records: bytes,
        chunks: bytes,
        in_flight: int,
        errors: list[str],
        lags: list[tuple[int, int]],
        loop_lag_max_ns: int,
        waits: CpuWaits,
        ended: bool,
    ) -> None:
        """Hand over what was collected since the report before."""
        values = {
            "in_flight": in_flight,
            "errors": errors,
            "lags": lags,
            "loop_lag_max_ns": loop_lag_max_ns,
            "cpu_ns": time.process_time_ns(),
            "cpu_wait_ns": waits.total_ns,
            "cpu_waits": waits.histogram.take(),
            "gc_pauses": self._pauses.count,
            "gc_pause_max_ns": self._pauses.take_max_ns(),
            "ended": ended,
        }
        self._put(values, records, chunks)

    def fatal(self, message: str) -> None:
        """Report an error that ends this process."""
        self._put({"fatal": message}, b"", b"")
        self.flush_blocking()

    def flush(self) -> None:
        """Send what the socket takes now."""
        try:
            while self._unsent:
                sent = self._sock.send(self._unsent[0])
                self._unsent[0] = self._unsent[0][sent:]
                if not self._unsent[0]:
                    self._unsent.popleft()
        except BlockingIOError:
            pass
        except OSError:
            self.broken = True
            self._unsent.clear()
        self.blocked = bool(self._unsent)

    def flush_blocking(self) -> None:
        """Send all that is left, however long the controller takes."""
        if not self.broken:
            self._sock.setblocking(True)
            self.flush()

    def _put(self, values: dict[str, object], records: bytes, chunks: bytes) -> None:
        text = json.dumps(values).encode()
        parts = (FRAME_HEAD.pack(len(text), len(records), len(chunks)), text, records, chunks)
        self._unsent.extend(memoryview(part) for part in parts if part)
        self.flush()


class GcPauses:
    """Counts and times the runs of Python's garbage collector. `observe` is for `gc.callbacks`."""

    def __init__(self) -> None:
        self.count = 0
        self._max_ns = 0
        self._since_ns = 0

    def observe(self, phase: str, _info: dict[str, int]) -> None:
        """Record the beginning or the end of a run."""
        if phase == "start":
            self._since_ns = time.monotonic_ns()
        else:
            self.count += 1
            self._max_ns = max(self._max_ns, time.monotonic_ns() - self._since_ns)

    def take_max_ns(self) -> int:
        """Return the longest run since the last call."""
        longest = self._max_ns
        self._max_ns = 0
        return longest
