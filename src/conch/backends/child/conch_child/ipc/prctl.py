"""Linux's `prctl`: what a process is to the one that started it, and what it may become."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

_SET_PDEATHSIG = 1
_SET_DUMPABLE = 4
_SET_NAME = 15
_SET_CHILD_SUBREAPER = 36
_GET_CHILD_SUBREAPER = 37
_SET_NO_NEW_PRIVS = 38
_CAP_AMBIENT, _CAP_AMBIENT_CLEAR_ALL = 47, 4
_CAPABILITY_VERSION = 0x20080522


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent, or rather the thread that started it, ends."""
    _prctl(_SET_PDEATHSIG, signal.SIGKILL)


def renounce_privileges() -> None:
    """Gain no rights by running a program, not even one that is setuid; for this process and all that it starts."""
    _prctl(_SET_NO_NEW_PRIVS, 1)


def set_dumpable(dumpable: bool) -> None:
    """Let processes of the same user look into this one by /proc and ptrace, and the kernel dump its core, or not."""
    _prctl(_SET_DUMPABLE, int(dumpable))


def drop_capabilities() -> None:
    """Give up what root may do beside being the owner of its files; with `renounce_privileges` for good."""
    header, none = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    _prctl(_CAP_AMBIENT, _CAP_AMBIENT_CLEAR_ALL)
    if ctypes.CDLL(None, use_errno=True).capset(header, none):
        error = ctypes.get_errno()
        raise OSError(error, "dropping capabilities failed: {}".format(os.strerror(error)))


def adopts() -> bool:
    """Whether this process becomes the parent of descendants whose own parent ends."""
    answer = ctypes.c_int()
    _prctl(_GET_CHILD_SUBREAPER, ctypes.byref(answer))
    return bool(answer.value)


def adopt(wanted: bool) -> None:
    """Become, or cease to be, the parent of descendants whose own parent ends."""
    _prctl(_SET_CHILD_SUBREAPER, int(wanted))


def set_name(name: str) -> None:
    """Show this process under a name: in full where command lines are listed, its first 15 bytes elsewhere."""
    text = name.encode(errors="replace")
    _prctl(_SET_NAME, text[:15])
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    # Where the arguments of the command line lie; whoever lists processes reads them there.
    start, end = int(fields[45]), int(fields[46])
    if start:
        ctypes.memmove(start, text[: end - start - 1].ljust(end - start, b"\0"), end - start)


def _prctl(option: int, argument: object) -> None:
    rest = (ctypes.c_ulong(0),) * 3
    value = ctypes.c_ulong(argument) if isinstance(argument, int) else argument
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, *rest):
        error = ctypes.get_errno()
        raise OSError(error, "prctl {}: {}".format(option, os.strerror(error)))
