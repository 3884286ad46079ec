"""Frames between the server and a worker."""

import mmap
import os
import socket
import threading

import pytest

from conch.server.frontends.offload.wire import MAX_HEAD_BYTES, FrameTooLarge, WorkerConnection

MIB = 2**20


def test_large_parts_arrive_in_memory_that_was_not_zeroed() -> None:
    """Filling 200 MB holds the interpreter lock, and with it the event loop, for 200 ms."""
    here, there = socket.socketpair()
    large = os.urandom(3 * MIB)
    with here, there:
        sender = threading.Thread(target=WorkerConnection(here).send, args=({"job": "x"}, [b"", b"small", large]))
        sender.start()
        head, parts = WorkerConnection(there).receive()
        sender.join()
    assert head["job"] == "x"
    assert [bytes(part) for part in parts] == [b"", b"small", large]
    assert isinstance(parts[2].obj, mmap.mmap)


@pytest.mark.parametrize(("head", "parts"), [("a" * (MAX_HEAD_BYTES + 1), []), ("", [b""] * 65_537)])
def test_nothing_is_sent_of_a_frame_that_the_other_side_would_refuse(head: str, parts: list[bytes]) -> None:
    here, there = socket.socketpair()
    with here, there:
        with pytest.raises(FrameTooLarge):
            WorkerConnection(here).send({"text": head}, parts)
        there.setblocking(False)
        with pytest.raises(BlockingIOError):
            there.recv(1)
