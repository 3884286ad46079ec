# Compiled by mypyc in wheels.
"""How many batches an instance that executes one is sent ahead, which hides the latency of the next."""

from typing import Final

_MAX_AHEAD: Final = 4
_FAST_EXECUTION_NS: Final = 200_000  # about the IPC round trip
_SHORT_EXECUTION_NS: Final = 10_000_000


class PipelineDepth:
    """The depth of one process's pipeline. Times are nanoseconds."""

    __slots__ = ("_typical_ns",)

    def __init__(self) -> None:
        self._typical_ns = 2 * _SHORT_EXECUTION_NS  # a moving average

    def __repr__(self) -> str:
        return f"<PipelineDepth typical execution {self._typical_ns / 1e6:.3f} ms>"

    def measured(self, execution_ns: int) -> None:
        """Update the average by the time of one execution."""
        self._typical_ns += (execution_ns - self._typical_ns) >> 3

    def depth(self, executing_for_ns: int, *, crowded: bool) -> int:
        """Return how many batches may wait behind one that has executed for `executing_for_ns`; 0 if that is long.

        `crowded`: a full batch waits for every instance. Then one may wait behind each short execution, since with
        many clients the event loop takes longer than such an execution to notice its end.
        """
        if executing_for_ns >= _SHORT_EXECUTION_NS:
            return 0
        if self._typical_ns < _FAST_EXECUTION_NS:
            return _MAX_AHEAD
        return 1 if crowded and self._typical_ns <= _SHORT_EXECUTION_NS else 0
