"""The fork server: a process with all imports done, from which the processes of Python models are forked.

A fork takes a few milliseconds, a new interpreter a tenth of a second, and forks share the memory of imported modules.
Each request is a datagram with the instance's name and the file descriptors of the new process, which responds itself
by its first message.

The new process becomes a child of the server: it is forked by an intermediate process that exits immediately, and the
server adopts orphans (PR_SET_CHILD_SUBREAPER). So the server gets its exit status even if the fork server dies.
"""

from __future__ import annotations

import errno
import json
import os
import select
import socket
import sys
from contextlib import suppress
from typing import List, Tuple

from ..ipc import prctl, sandbox
from ..ipc.wire import encode_to_server
from . import messages

# Control socket, standard output, standard error; descriptors that are shared follow, for a model the two arenas.
_OWN_DESCRIPTORS = 3
_MAX_SHARED = 8

# Of a request: the name and, after a zero byte, the sandbox rules as JSON.
_MAX_DATAGRAM_BYTES = 1 << 16


def next_child(requests: socket.socket, shared: int = 2) -> Tuple[str, int, List[int]]:
    """Fork at each request. Returns only in the new processes: name, control socket and `shared` descriptors.

    Exits when the server has exited. The process must have one thread.
    """
    own_pid, server = os.getpid(), os.getppid()
    while True:
        name, descriptors, _, _ = socket.recv_fds(
            requests, _MAX_DATAGRAM_BYTES, _OWN_DESCRIPTORS + _MAX_SHARED, socket.MSG_CMSG_CLOEXEC
        )
        if not name:
            sys.exit(0)
        if not descriptors:
            continue  # this process has too many descriptors open; the server sees the socket closed
        try:
            if len(descriptors) < _OWN_DESCRIPTORS + shared:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            parent = _fork_orphan()
            if parent:
                requests.close()
                return _set_up_child(name.decode(errors="replace"), descriptors, parent, server)
        except OSError as error:
            _report(descriptors[0], 0, error.strerror or str(error))
            if os.getpid() != own_pid:
                os._exit(1)
        for descriptor in descriptors:
            os.close(descriptor)


def _fork_orphan() -> int:
    """Fork a grandchild; return in it the id of the intermediate process, which exits and so orphans it, here 0."""
    intermediate = os.fork()
    if intermediate:
        failure = os.waitstatus_to_exitcode(os.waitpid(intermediate, 0)[1])
        if failure:
            raise OSError(failure, os.strerror(failure))
        return 0
    intermediate = os.getpid()
    try:
        if not os.fork():
            return intermediate
    except OSError as error:
        os._exit(error.errno or 1)
    os._exit(0)


def _set_up_child(name: str, descriptors: List[int], parent: int, server: int) -> Tuple[str, int, List[int]]:
    """Give a forked process its session, standard output, name, sandbox and random seed."""
    name, _, rules = name.partition("\0")
    os.setsid()
    control, output, error = descriptors[:_OWN_DESCRIPTORS]
    os.dup2(output, 1)
    os.dup2(error, 2)
    os.close(output)
    os.close(error)
    _wait_for_exit(parent)
    _die_with_server(server, control)
    with suppress(OSError):  # cosmetic
        prctl.set_name("conch " + name)
    if rules:
        try:
            sandbox.confine(json.loads(rules))
        except (OSError, ValueError) as error:
            _report(control, 0, "cannot apply the sandbox: {}".format(error))
            os._exit(1)
        _die_with_server(server, control)
    # numpy's generator, seeded at import, would give all processes the same numbers; `random` reseeds after a fork.
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    _report(control, os.getpid(), "")
    return name, control, descriptors[_OWN_DESCRIPTORS:]


def _die_with_server(server: int, control: int) -> None:
    """Have the kernel kill this process with the server. To be repeated after a change of the user, which resets it."""
    prctl.die_with_parent()
    if os.getppid() != server:
        _report(control, 0, "the server has not adopted the process: PR_SET_CHILD_SUBREAPER has no effect")
        os._exit(1)


def _wait_for_exit(pid: int) -> None:
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        select.select([descriptor], [], [])
        os.close(descriptor)


def _report(control: int, pid: int, error: str) -> None:
    """Send the process id, or the error, as the process's first message."""
    with suppress(OSError):  # the server has closed the socket
        os.write(control, encode_to_server((messages.BORN, pid, error)))
