"""The process that processes of models are forked from: it has imported what each of them needs.

A fork takes a few milliseconds where a new interpreter takes a tenth of a second, and it shares the memory of what is
imported. Each request is a datagram with the name of the instance and, beside it, the descriptors that the new process
shall have; there is no answer but the first message of the new process itself.

The new process becomes a child of the server's: it is forked by a process that ends at once, and the server adopts
orphans meanwhile. So the server waits for it and learns its exit status, whatever becomes of the fork server.
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
from ..ipc.wire import encode
from . import messages

# Control socket, standard output, standard error, and the two arenas.
DESCRIPTORS = 5

# A name and, behind a zero byte, the rules of its sandbox.
_LONGEST_NAME = 1 << 16


def next_child(requests: socket.socket) -> Tuple[str, int, int, int]:
    """Fork at each request. Returns in the new processes only: name, control socket and the two arenas.

    Ends the process when the server has gone. There must be no other thread.
    """
    itself, server = os.getpid(), os.getppid()
    while True:
        name, descriptors, _, _ = socket.recv_fds(requests, _LONGEST_NAME, DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
        if not name:
            sys.exit(0)
        if not descriptors:
            continue  # there was no room for any: the server sees them closed
        try:
            if len(descriptors) < DESCRIPTORS:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            parent = _fork_orphan()
            if parent:
                requests.close()
                return _settle_in(name.decode(errors="replace"), descriptors, parent, server)
        except OSError as error:
            _cry(descriptors[0], 0, error.strerror or str(error))
            if os.getpid() != itself:
                os._exit(1)
        for descriptor in descriptors:
            os.close(descriptor)


def _fork_orphan() -> int:
    """Fork a process that is not this one's child; in that process return the one that ends and leaves it an orphan."""
    between = os.fork()
    if between:
        failure = os.waitstatus_to_exitcode(os.waitpid(between, 0)[1])
        if failure:
            raise OSError(failure, os.strerror(failure))
        return 0
    between = os.getpid()
    try:
        if not os.fork():
            return between
    except OSError as error:
        os._exit(error.errno or 1)
    os._exit(0)


def _settle_in(name: str, descriptors: List[int], parent: int, server: int) -> Tuple[str, int, int, int]:
    """Become what a process that has been started anew would be."""
    name, _, rules = name.partition("\0")
    os.setsid()
    control, output, error, inputs, outputs = descriptors
    os.dup2(output, 1)
    os.dup2(error, 2)
    os.close(output)
    os.close(error)
    _await_end(parent)
    _follow(server, control)
    with suppress(OSError):  # for show only
        prctl.set_name("conch " + name)
    if rules:
        try:
            sandbox.confine(json.loads(rules))
        except (OSError, ValueError) as error:
            _cry(control, 0, "its sandbox cannot be applied: {}".format(error))
            os._exit(1)
        _follow(server, control)
    # Generators that were seeded at import would give every process the same numbers; `random` sees to itself.
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    _cry(control, os.getpid(), "")
    return name, control, inputs, outputs


def _follow(server: int, control: int) -> None:
    """End with the server. To be said again after a change of the user, which takes it back."""
    prctl.die_with_parent()
    if os.getppid() != server:
        _cry(control, 0, "the server may not have children that others have started")
        os._exit(1)


def _await_end(process: int) -> None:
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(process)
        select.select([descriptor], [], [])
        os.close(descriptor)


def _cry(control: int, pid: int, error: str) -> None:
    """Tell the server, as the first message of all, that there is a process or why there is none."""
    with suppress(OSError):  # the server does not listen any more
        os.write(control, encode((messages.BORN, pid, error)))
