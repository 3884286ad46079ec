"""How long a thread has been ready to run without a processor, as the kernel counts it."""

import os

_FILE = "/proc/thread-self/schedstat"
_FILE_BYTES = 96


class CpuWait:
    """The run-queue delay of the thread that makes this object. Readable from any thread until `close`."""

    __slots__ = ("_fd",)

    def __init__(self) -> None:
        try:
            self._fd = os.open(_FILE, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._fd = -1

    def total_ns(self) -> int | None:
        """Return the delay since the thread began in nanoseconds, None where the kernel does not count it."""
        if self._fd < 0:
            return None
        try:
            return int(os.pread(self._fd, _FILE_BYTES, 0).split()[1])
        except (OSError, ValueError, IndexError):
            self.close()
            return None

    def close(self) -> None:
        """Release the file; from now on `total_ns` is None."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
