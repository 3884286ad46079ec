"""The end of a process with its parent. Processes of models have their own module, as they cannot import this one."""

import ctypes
import signal

_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)  # loaded before a fork, where it is called


def die_with_parent() -> None:
    """Have the kernel kill this process when the parent's thread that started it exits; as a preexec_fn, too."""
    if _LIBC.prctl(_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL)):
        raise OSError("prctl: the parent death signal cannot be set")
