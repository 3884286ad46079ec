"""Filter of system calls (seccomp) of a confined process: what Landlock does not cover, and what widens the kernel.

The filter is irreversible and inherited. Refused calls fail with EPERM; those of other architectures, and `clone3`,
whose flags a filter cannot read, with ENOSYS, so that the C library falls back to `clone`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from typing import Dict, List, NamedTuple, Sequence, Tuple

_SET_SECCOMP, _MODE_FILTER = 22, 2  # of prctl
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000  # what a filter returns

# Instructions of the filter: load a word, compare and jump, return.
_LOAD, _IF_EQUAL, _IF_FROM, _IF_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data
_X32_CALLS = 0x40000000  # x86-64 only

# CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET.
_NAMESPACES = 0x7E020000
_NEW_TIME = 0x80  # in the flags of `clone` a part of the signal
_FAKE_INPUT = 0x5412  # TIOCSTI: input of the terminal
_SET_FLAGS, _SET_PROJECT = 0x40086602, 0x401C5820  # FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR

# Call → its number on x86-64 and on arm64; -1: that architecture does not have it.
_Numbers = Dict[str, Tuple[int, int]]

# Attributes of files, which Landlock does not cover: with them a model changes files that it may only read.
_ATTRIBUTES: _Numbers = {
    "chmod": (90, -1), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, -1), "fchown": (93, 55), "lchown": (94, -1), "fchownat": (260, 54),
    "utime": (132, -1), "utimes": (235, -1), "futimesat": (261, -1), "utimensat": (280, 88),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setxattrat": (463, 463),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16), "removexattrat": (466, 466),
    "file_setattr": (469, 469),
}  # fmt: skip

# Other processes, namespaces and mounts, and parts of the kernel that models do not need and attackers like.
_DANGEROUS: _Numbers = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "setns": (308, 268), "chroot": (161, 51), "pivot_root": (155, 41),
    "mount": (165, 40), "umount2": (166, 39), "open_tree": (428, 428), "move_mount": (429, 429),
    "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "mount_setattr": (442, 442), "open_tree_attr": (467, 467), "open_by_handle_at": (304, 265),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142), "acct": (163, 89),
    "swapon": (167, 224), "swapoff": (168, 225), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "sethostname": (170, 161), "setdomainname": (171, 162),
    "fanotify_init": (300, 262), "syslog": (103, 116), "vhangup": (153, 58), "iopl": (172, -1), "ioperm": (173, -1),
    "modify_ldt": (154, -1),
}  # fmt: skip

# Calls that may change other processes of the same user, such as the server. Each may only name the caller, as 0.
_ON_PROCESSES: _Numbers = {
    "prlimit64": (302, 261), "sched_setscheduler": (144, 119), "sched_setparam": (142, 118),
    "sched_setattr": (314, 274), "migrate_pages": (256, 238), "move_pages": (279, 239),
}  # fmt: skip
_SET_PRIORITY, _SET_IO_PRIORITY = (141, 140), (251, 30)  # the first argument says what the second one names

_CLONE, _UNSHARE, _IOCTL, _CLONE3 = (56, 220), (272, 97), (16, 29), 435


class _Architecture(NamedTuple):
    audit: int  # AUDIT_ARCH_…
    column: int  # of the tables above


_ARCHITECTURES = {"x86_64": _Architecture(0xC000003E, 0), "aarch64": _Architecture(0xC00000B7, 1)}


class _Instruction(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint16), ("yes", ctypes.c_uint8), ("no", ctypes.c_uint8), ("k", ctypes.c_uint32)]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(_Instruction))]


def refuse_dangerous_calls(*, attributes: bool) -> bool:
    """Install the filter in this process, which must have one thread and no_new_privs. Raises OSError.

    With `attributes`, modes, owners, times and extended attributes of files cannot be changed either. False on a
    processor whose calls are not known.
    """
    architecture = _ARCHITECTURES.get(platform.machine())
    if architecture is None:
        return False
    rows = _filter(architecture, attributes)
    instructions = (_Instruction * len(rows))(*rows)
    program = _Program(len(rows), instructions)
    libc = ctypes.CDLL(None, use_errno=True)
    none = ctypes.c_ulong(0)
    if libc.prctl(_SET_SECCOMP, ctypes.c_ulong(_MODE_FILTER), ctypes.byref(program), none, none):
        error = ctypes.get_errno()
        raise OSError(error, "installing a seccomp filter failed: {}".format(os.strerror(error)))
    return True


def _filter(architecture: _Architecture, attributes: bool) -> List[_Instruction]:
    column = architecture.column
    refused = {**_DANGEROUS, **(_ATTRIBUTES if attributes else {})}
    ioctls = [_FAKE_INPUT, *([_SET_FLAGS, _SET_PROJECT] if attributes else [])]
    rows = [
        _Instruction(_LOAD, 0, 0, _ARCHITECTURE),
        _Instruction(_IF_EQUAL, 1, 0, architecture.audit),
        _error(errno.ENOSYS),
        _Instruction(_LOAD, 0, 0, _NUMBER),
        _Instruction(_IF_FROM, 0, 1, _X32_CALLS),
        _error(errno.ENOSYS),
        _Instruction(_IF_EQUAL, 0, 1, _CLONE3),
        _error(errno.ENOSYS),
    ]
    for numbers in refused.values():
        if numbers[column] >= 0:
            rows += [_Instruction(_IF_EQUAL, 0, 1, numbers[column]), _error(errno.EPERM)]
    rows += _if_arguments(_CLONE[column], [(0, _IF_BITS, _NAMESPACES)])
    rows += _if_arguments(_UNSHARE[column], [(0, _IF_BITS, _NAMESPACES | _NEW_TIME)])
    rows += _if_arguments(_IOCTL[column], [(1, _IF_EQUAL, number) for number in ioctls])
    for numbers in _ON_PROCESSES.values():
        rows += _if_arguments(numbers[column], [(0, _IF_FROM, 1)])
    rows += _if_arguments(_SET_PRIORITY[column], [(0, _IF_FROM, 1), (1, _IF_FROM, 1)])
    rows += _if_arguments(_SET_IO_PRIORITY[column], [(0, _IF_FROM, 2), (1, _IF_FROM, 1)])
    return [*rows, _Instruction(_RETURN, 0, 0, _ALLOW)]


def _if_arguments(number: int, conditions: Sequence[Tuple[int, int, int]]) -> List[_Instruction]:
    """Return instructions that refuse a call if the low half of an argument meets its condition."""
    body = []
    for argument, code, value in conditions:
        body.append(_Instruction(_LOAD, 0, 0, _FIRST_ARGUMENT + 8 * argument))
        body += [_Instruction(code, 0, 1, value), _error(errno.EPERM)]
    body.append(_Instruction(_RETURN, 0, 0, _ALLOW))
    return [_Instruction(_IF_EQUAL, 0, len(body), number), *body]


def _error(number: int) -> _Instruction:
    return _Instruction(_RETURN, 0, 0, _ERRNO | number)
