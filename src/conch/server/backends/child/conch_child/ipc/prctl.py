"""Linux's `prctl`: parent death signal, privileges, orphans, timers and name of a process."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path
from typing import List, Tuple

_SET_PDEATHSIG = 1
_SET_DUMPABLE = 4
_SET_NAME = 15
_SET_TIMERSLACK = 29
_SET_CHILD_SUBREAPER = 36
_GET_CHILD_SUBREAPER = 37
_SET_NO_NEW_PRIVS = 38
_CAP_AMBIENT, _CAP_AMBIENT_CLEAR_ALL = 47, 4
_CAPABILITY_VERSION = 0x20080522


def die_with_parent() -> None:
    """Have the kernel kill this process when the parent's thread that started it exits."""
    _prctl(_SET_PDEATHSIG, signal.SIGKILL)


def renounce_privileges() -> None:
    """Gain no privileges by running setuid programs, in this process and all that it starts (no_new_privs)."""
    _prctl(_SET_NO_NEW_PRIVS, 1)


def set_timer_slack(time_ns: int) -> None:
    """Set how late a sleep of this thread, and of threads and processes that it starts, may end."""
    _prctl(_SET_TIMERSLACK, time_ns)


def set_dumpable(dumpable: bool) -> None:
    """Allow or deny /proc and ptrace access by processes of the same user, and core dumps."""
    _prctl(_SET_DUMPABLE, int(dumpable))


def drop_capabilities() -> None:
    """Drop all capabilities; with `renounce_privileges` permanently."""
    header, none = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    _prctl(_CAP_AMBIENT, _CAP_AMBIENT_CLEAR_ALL)
    if ctypes.CDLL(None, use_errno=True).capset(header, none):
        error = ctypes.get_errno()
        raise OSError(error, "dropping capabilities failed: {}".format(os.strerror(error)))


def is_subreaper() -> bool:
    """Return whether this process adopts orphaned descendants."""
    answer = ctypes.c_int()
    _prctl(_GET_CHILD_SUBREAPER, ctypes.byref(answer))
    return bool(answer.value)


def set_subreaper(enabled: bool) -> None:
    """Start or stop adopting orphaned descendants."""
    _prctl(_SET_CHILD_SUBREAPER, int(enabled))


def set_name(name: str) -> None:
    """Set the process's name: in full as its command line, its first 15 bytes as its comm."""
    text = name.encode(errors="replace")
    _prctl(_SET_NAME, text[:15])
    start, end = text_areas()[0]
    if start:
        ctypes.memmove(start, text[: end - start - 1].ljust(end - start, b"\0"), end - start)


def text_areas() -> List[Tuple[int, int]]:
    """Return the addresses, from and to, of which /proc/PID/cmdline and /proc/PID/environ are read; 0 if unknown."""
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    # proc(5): arg_start to env_end, counted from the state.
    return [(int(fields[45]), int(fields[46])), (int(fields[47]), int(fields[48]))]


def _prctl(option: int, argument: object) -> None:
    rest = (ctypes.c_ulong(0),) * 3
    value = ctypes.c_ulong(argument) if isinstance(argument, int) else argument
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, *rest):
        error = ctypes.get_errno()
        raise OSError(error, "prctl {}: {}".format(option, os.strerror(error)))
