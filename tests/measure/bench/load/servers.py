"""Servers that answer as a script says, on real sockets, each connection in a thread."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

Handler = Callable[[socket.socket], None]

HEAD = b"POST /v2/models/m/infer HTTP/1.1\r\nContent-Type: application/json\r\n"
ANSWER = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 11\r\n\r\n{"a": [1]}\n'


def read_request(peer: socket.socket) -> bytes:
    """Return the next request, b"" at the end of the connection."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = peer.recv(65_536)
        if not piece:
            return b""
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    while len(body) < length:
        body += peer.recv(65_536)
    return head + b"\r\n\r\n" + body


def answering(answer: bytes) -> Handler:
    """Return a handler that sends `answer` to each request."""

    def handle(peer: socket.socket) -> None:
        while read_request(peer):
            peer.sendall(answer)

    return handle


@contextlib.contextmanager
def serving(handle: Handler) -> Iterator[int]:
    """Serve on a free port, which is the result. Connections are closed when their handler returns."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    peers: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def run(peer: socket.socket) -> None:
        with contextlib.suppress(OSError), peer:
            handle(peer)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = listener.accept()
                peers.append(peer)
                thread = threading.Thread(target=run, args=(peer,))
                threads.append(thread)
                thread.start()

    acceptor = threading.Thread(target=accept)
    acceptor.start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        acceptor.join()
        for peer in peers:
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)
        deadline = time.monotonic() + 30
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
