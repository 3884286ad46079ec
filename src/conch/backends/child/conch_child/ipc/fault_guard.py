"""Copies into and out of memory that another process may take away.

Who shares a file with this process can make it smaller at any time. Touching what has gone of a mapping raises SIGBUS,
which ends a process that does nothing about it. Reading and writing the file in place of mapping it would be safe by
itself, but costs two to three times as much for large tensors (4.9 MB: 1 ms against 0.35 ms). So the signal is caught:
the missing pages are replaced by empty ones, the copy goes on, and whoever asked for it hears that it is worth nothing.
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
# In siginfo_t, where pointers have 64 bits: what happened, and where.
_CODE_OFFSET: Final = 8
_ADDRESS_OFFSET: Final = 16
# `si_code`: no such page in the object. Others are of failing hardware, or of a process that sends the signal.
_BUS_ADRERR: Final = 2

_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class _Action(ctypes.Structure):
    """`struct sigaction` of the C library, which is alike on x86-64 and ARM."""

    _fields_ = (
        ("handler", _Handler),
        ("mask", ctypes.c_uint8 * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


class FaultGuard:
    """Copies of one thread at a time, under guard. Life: `install` → `copy`* → `remove`, or as long as the process.

    The handler is Python. It may be, since the signal comes at a known place: out of the one copy that is under way,
    where the interpreter is as it is when a function written in C calls back.
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
        self._former = _Action()
        self._guarded = range(0)  # the addresses that may be missing, while a copy is under way
        self._whole = True

    def install(self) -> None:
        """Catch the signal from now on. Raises OSError."""
        if self._library.sigaction(signal.SIGBUS, ctypes.byref(self._action), ctypes.byref(self._former)) != 0:
            raise OSError(ctypes.get_errno(), "cannot catch SIGBUS")

    def remove(self) -> None:
        """Catch it no more: whoever caught it before does so again."""
        self._library.sigaction(signal.SIGBUS, ctypes.byref(self._former), None)

    def copy(self, target: Any, source: Any, mapping: Any) -> bool:
        """Copy an array; one of the two lies in `mapping`, an array of bytes.

        Returns whether all of it was there; if not, `mapping` is spoilt.
        """
        begin: int = mapping.ctypes.data
        self._whole = True
        self._guarded = range(begin, begin + len(mapping))
        np.copyto(target, source)
        self._guarded = range(0)
        return self._whole

    def _fault(self, _number: int, info: int, _context: int) -> None:
        """Put empty pages where some are missing, so that the copy can go on; or let the process end."""
        code = ctypes.c_int.from_address(info + _CODE_OFFSET).value
        address = ctypes.c_size_t.from_address(info + _ADDRESS_OFFSET).value
        if code != _BUS_ADRERR or address not in self._guarded or not self._replace(address):
            # As if it had not been caught: it comes once more, when this has returned.
            self.remove()
            signal.raise_signal(signal.SIGBUS)
        self._whole = False

    def _replace(self, address: int) -> bool:
        page = address - address % mmap.PAGESIZE
        size = self._guarded.stop - page
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
        return bool(self._library.mmap(page, size, protection, flags, -1, 0) != _MAP_FAILED)
