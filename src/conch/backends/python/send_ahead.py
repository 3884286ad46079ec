"""How many batches a model's process is sent while it executes another one, from how long its executions take.

Sending ahead hides the IPC round trip of a fast model. What is sent cannot be executed by another instance any more, so
it pays only where executions are as short as the round trip, and a model that has not been measured counts as slow.
"""

_MAX_AHEAD = 4
_FAST_EXECUTION_NS = 200_000  # about the IPC round trip
_SHORT_EXECUTION_NS = 10_000_000


class SendAhead:
    """The depth of one process's pipeline. Times are nanoseconds."""

    __slots__ = ("_typical_ns",)

    def __init__(self) -> None:
        self._typical_ns = 2 * _SHORT_EXECUTION_NS  # a moving average

    def __repr__(self) -> str:
        return f"<SendAhead typical execution {self._typical_ns / 1e6:.3f} ms>"

    def measured(self, execution_ns: int) -> None:
        """Take in how long one execution took."""
        self._typical_ns += (execution_ns - self._typical_ns) >> 3

    def depth(self, executing_for_ns: int, *, crowded: bool) -> int:
        """Return how many batches may wait behind one that has executed for so long: none behind one that is stuck.

        `crowded`: a full batch waits for every instance. Then one may wait behind each short execution: with many
        clients, the event loop learns that a batch is done later than short executions take.
        """
        if executing_for_ns >= _SHORT_EXECUTION_NS:
            return 0
        if self._typical_ns < _FAST_EXECUTION_NS:
            return _MAX_AHEAD
        return 1 if crowded and self._typical_ns <= _SHORT_EXECUTION_NS else 0
