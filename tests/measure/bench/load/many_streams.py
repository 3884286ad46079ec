"""A server of many event streams at once: ten chunks each, a chunk for every stream in turn. Runs in a process."""

import contextlib
import multiprocessing
import resource
import select
import socket
from collections.abc import Iterator
from multiprocessing.connection import Connection

CHUNKS = 10
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"word"},"finish_reason":null}]}\n\n'
_DONE = b"data: [DONE]\n\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


@contextlib.contextmanager
def many_streams(pause_s: float = 0.05) -> Iterator[int]:
    """Serve on a free port, which is the result; `pause_s` lies between the chunks of a stream."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, pause_s), daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        process.kill()
        process.join()
        ours.close()
        theirs.close()


def _serve(pipe: Connection, pause_s: float) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    listener.setblocking(False)
    pipe.send(listener.getsockname()[1])
    epoll = select.epoll()
    epoll.register(listener, select.EPOLLIN)
    peers: dict[int, socket.socket] = {}
    left: dict[int, int] = {}
    while True:
        for descriptor, _ in epoll.poll(pause_s, 4096):
            if descriptor == listener.fileno():
                with contextlib.suppress(BlockingIOError):
                    while True:
                        peer, _ = listener.accept()
                        peer.setblocking(False)
                        peers[peer.fileno()] = peer
                        epoll.register(peer, select.EPOLLIN)
            elif peers[descriptor].recv(65_536):
                left[descriptor] = CHUNKS
                peers[descriptor].send(_HEAD)
            else:
                left.pop(descriptor, None)
                epoll.unregister(descriptor)
                peers.pop(descriptor).close()
        for descriptor in list(left):
            last = left[descriptor] == 1
            peers[descriptor].send(_chunk(_EVENT) + (_chunk(_DONE) + _chunk(b"") if last else b""))
            left[descriptor] -= 1
            if last:
                del left[descriptor]
