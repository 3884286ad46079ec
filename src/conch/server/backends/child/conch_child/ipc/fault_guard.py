"""Copy to and from a mapped file that another process may truncate, without dying from SIGBUS.

A process that shares a file can truncate it at any time. Accessing the missing pages of a mapping raises SIGBUS, which
kills the process by default. Reading and writing the file instead would be safe, but takes two to three times as long
for large tensors (4.9 MB: 1 ms instead of 0.35 ms). So a handler of the signal replaces the missing pages by empty
ones, the copy continues, and its caller is informed that it is incomplete.
"""

from __future__ import annotations

import ctypes
import mmap
import signal
from typing import Any, Final

import numpy as np

_SA_SIGINFO: Final = 4
_MAP_FIXED: Final = 0x10
_MAP_FAILED: Final = ctypes.c_void_p(-1).value
# Offsets of si_code and si_addr in siginfo_t on 64-bit systems.
_CODE_OFFSET: Final = 8
_ADDRESS_OFFSET: Final = 16
# The `si_code` of a missing page. Others mean a hardware failure, or that a process sent the signal.
_BUS_ADRERR: Final = 2

_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class _Action(ctypes.Structure):
    """`struct sigaction` of the C library, the same on x86-64 and ARM64."""

    _fields_ = (
        ("handler", _Handler),
        ("mask", ctypes.c_uint8 * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


class FaultGuard:
    """Guarded copies, one thread at a time. Order of calls: `install`, any number of `copy`, `remove`.

    The handler may be a Python function, since the signal can only occur within `numpy.copyto`, where the interpreter
    is in the state of a C function that calls back into Python.
    """

    def __init__(self) -> None:
        self._library: Any = ctypes.CDLL(None, use_errno=True)
        self._library.mmap.restype = ctypes.c_void_p
        self._library.mmap.argtypes = (
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_long,
        )
        self._action = _Action(_Handler(self._fault), flags=_SA_SIGINFO)
        self._previous = _Action()
        self._guarded_addresses = range(0)  # of the mapping, during a copy
        self._intact = True

    def install(self) -> None:
        """Install the signal handler. Raises OSError."""
        if self._library.sigaction(signal.SIGBUS, ctypes.byref(self._action), ctypes.byref(self._previous)) != 0:
            raise OSError(ctypes.get_errno(), "cannot catch SIGBUS")

    def remove(self) -> None:
        """Restore the previous signal handler."""
        self._library.sigaction(signal.SIGBUS, ctypes.byref(self._previous), None)

    def copy(self, target: Any, source: Any, mapping: Any) -> bool:
        """Copy an array to or from `mapping`, a mapped array of bytes.

        Returns whether no page was missing; if one was, `mapping` must not be used again.
        """
        begin: int = mapping.ctypes.data
        self._intact = True
        self._guarded_addresses = range(begin, begin + len(mapping))
        np.copyto(target, source)
        self._guarded_addresses = range(0)
        return self._intact

    def _fault(self, _number: int, info: int, _context: int) -> None:
        """Replace missing pages by empty ones, so that the copy can continue; else re-raise the signal."""
        code = ctypes.c_int.from_address(info + _CODE_OFFSET).value
        address = ctypes.c_size_t.from_address(info + _ADDRESS_OFFSET).value
        if code != _BUS_ADRERR or address not in self._guarded_addresses or not self._replace(address):
            # With the previous handler; delivered after this function returns.
            self.remove()
            signal.raise_signal(signal.SIGBUS)
        self._intact = False

    def _replace(self, address: int) -> bool:
        page = address - address % mmap.PAGESIZE
        size = self._guarded_addresses.stop - page
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
        return bool(self._library.mmap(page, size, protection, flags, -1, 0) != _MAP_FAILED)
