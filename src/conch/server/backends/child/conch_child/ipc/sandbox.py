"""Sandbox of a model's process: its user, resource limits, file access by Landlock, and system calls.

The process applies it to itself before it imports anything of the model. It is irreversible, and inherited by processes
that the model starts: limits are hard and Landlock rules can only be tightened.
"""

from __future__ import annotations

import ctypes
import grp
import json
import os
import pwd
import resource
import stat
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, Iterable, List, Sequence

from . import prctl
from .system_calls import refuse_dangerous_calls

# Environment variable with the rules as JSON for started programs; removed before the model's code runs.
VARIABLE = "CONCH_SANDBOX"

# From linux/landlock.h. The system call numbers are the same on every architecture but alpha.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION = 1
_RULE_PATH_BENEATH = 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_RIGHTS_OF_ABI_1 = (1 << 13) - 1
_SCOPE_ABSTRACT_SOCKETS, _SCOPE_SIGNALS = 1 << 0, 1 << 1
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_READING = _EXECUTE | _READ_FILE | _READ_DIR

# Readable by all programs: system files without secrets.
_SYSTEM = (
    "/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/proc", "/sys",
    "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime", "/etc/timezone", "/etc/locale.alias",
    "/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/hosts", "/etc/resolv.conf", "/etc/mime.types", "/etc/ssl",
    "/etc/ca-certificates", "/etc/pki", "/etc/alternatives", "/etc/OpenCL", "/etc/vulkan",
    "/dev/urandom", "/dev/random",
)  # fmt: skip
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/dri", "/dev/kfd")
_GPUS = "nvidia*"

_RESOURCES = {"memory": resource.RLIMIT_DATA, "processes": resource.RLIMIT_NPROC, "files": resource.RLIMIT_NOFILE}


class _Ruleset(ctypes.Structure):
    _fields_ = [("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def landlock_abi() -> int:
    """Return the kernel's Landlock ABI version, 0 without Landlock."""
    return max(_syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION)), 0)


def confine(rules: Dict[str, Any]) -> None:
    """Apply rules to this process, which must have one thread, drop its capabilities and filter its system calls.

    `uid`, `gid` and `groups`: the user; `limits`: the maximum of each resource; `read` and `write`: paths for Landlock,
    in addition to those that Python needs; `temporary`: the folder for temporary files, also the home directory. Raises
    OSError.
    """
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads > 1:  # Landlock would not apply to the others
        raise OSError(0, "the process has {} threads already".format(threads))
    for name, limit in rules["limits"].items():
        hard = resource.getrlimit(_RESOURCES[name])[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(_RESOURCES[name], (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    temporary = rules["temporary"]
    os.environ["TMPDIR"] = os.environ["HOME"] = temporary
    tempfile.tempdir = None
    # The ruleset is created before the user is changed, as only the server's user can look up some paths.
    ruleset = _ruleset(rules["read"], [temporary, *rules["write"]]) if rules["landlock"] else -1
    if "uid" in rules:
        os.setgroups(rules["groups"])
        os.setgid(rules["gid"])
        os.setuid(rules["uid"])
    prctl.drop_capabilities()  # with them, root could read other processes' secrets in /proc
    if ruleset >= 0:
        if _syscall(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0)) < 0:
            raise _failed("landlock_restrict_self")
        os.close(ruleset)
    refuse_dangerous_calls(attributes=rules["landlock"])


def confine_from_environment() -> None:
    """Apply the rules in the environment, if there are any. Exits the process if they cannot be applied."""
    rules = os.environ.pop(VARIABLE, "")
    if rules:
        try:
            confine(json.loads(rules))
        except (OSError, ValueError) as error:
            sys.exit("cannot apply the sandbox: {}".format(error))
        prctl.die_with_parent()  # again, as a change of the user resets it


def user(text: str) -> Dict[str, Any]:
    """Return the rules for a user: `<name or number>[:<group or number>]`. Raises KeyError for an unknown name."""
    name, _, group = text.partition(":")
    known = pwd.getpwuid(int(name)) if name.isdecimal() and _has_uid(int(name)) else None
    if not name.isdecimal():
        known = pwd.getpwnam(name)
    uid = known.pw_uid if known is not None else int(name)
    if group:
        gid = int(group) if group.isdecimal() else grp.getgrnam(group).gr_gid
    else:
        gid = known.pw_gid if known is not None else uid
    groups = [gid] if group or known is None else os.getgrouplist(known.pw_name, gid)
    return {"uid": uid, "gid": gid, "groups": groups}


def _has_uid(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _ruleset(read: Sequence[str], write: Sequence[str]) -> int:
    abi = landlock_abi()
    if not abi:
        raise OSError(0, "the kernel has no Landlock")
    handled = _RIGHTS_OF_ABI_1
    handled |= (_REFER if abi >= 2 else 0) | (_TRUNCATE if abi >= 3 else 0) | (_IOCTL_DEV if abi >= 5 else 0)
    scoped = _SCOPE_ABSTRACT_SOCKETS | _SCOPE_SIGNALS if abi >= 6 else 0
    attributes = _Ruleset(handled, 0, scoped)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    ruleset = _syscall(_CREATE_RULESET, ctypes.byref(attributes), ctypes.c_size_t(size), ctypes.c_uint32(0))
    if ruleset < 0:
        raise _failed("creating a Landlock ruleset")
    for path in (*_SYSTEM, *_interpreter(), *read):
        _allow(ruleset, path, _READING & handled)
    for path in (*_DEVICES, *_gpu_devices(), *write):
        _allow(ruleset, path, handled)
    return ruleset


def _interpreter() -> Iterable[str]:
    """Return the folders of Python and its modules."""
    package = str(Path(__file__).resolve().parents[2])
    places = (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix, package, *sys.path)
    return dict.fromkeys(place for place in places if Path(place).is_absolute())


def _gpu_devices() -> List[str]:
    return [str(path) for path in Path("/dev").glob(_GPUS)]


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # a missing path needs no rule
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= _OF_FILES
        rule = _PathBeneath(rights, descriptor)
        kind = ctypes.c_int(_RULE_PATH_BENEATH)
        if _syscall(_ADD_RULE, ctypes.c_int(ruleset), kind, ctypes.byref(rule), ctypes.c_uint32(0)) < 0:
            raise _failed("adding a Landlock rule for '{}'".format(path))
    finally:
        os.close(descriptor)


def _syscall(number: int, *arguments: Any) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return int(libc.syscall(ctypes.c_long(number), *arguments))


def _failed(what: str) -> OSError:
    error = ctypes.get_errno()
    return OSError(error, "{} failed: {}".format(what, os.strerror(error)))
