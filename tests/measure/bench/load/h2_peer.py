"""Servers made of HTTP/2 frames, for what a well-behaved server does not send. Each connection is a thread."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.exceptions

ANSWER = b"\0\0\0\0\x03abc"
HEAD = [(":status", "200"), ("content-type", "application/grpc")]
TRAILERS = [("grpc-status", "0")]


class H2Call:
    """One connection of the load generator, as the Python peer `h2` sees it."""

    def __init__(self, sock: socket.socket, settings: dict[Any, int]) -> None:
        self.sock = sock
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="utf-8"))
        self.h2.initiate_connection()
        self.h2.update_settings(settings)
        self.events: list[h2.events.Event] = []
        self.flush()

    def flush(self) -> None:
        """Send what h2 has written."""
        self.sock.sendall(self.h2.data_to_send())

    def next(self, kind: type[h2.events.Event]) -> Any:
        """Return the next event of a kind, dropping others; windows are given back. Raises EOFError."""
        while True:
            while self.events:
                event = self.events.pop(0)
                if isinstance(event, kind):
                    return event
            data = self.sock.recv(65_536)
            if not data:
                raise EOFError
            self.events = self.h2.receive_data(data)
            for event in self.events:
                if isinstance(event, h2.events.DataReceived) and event.flow_controlled_length:
                    with contextlib.suppress(h2.exceptions.ProtocolError):
                        self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            self.flush()

    def next_call(self) -> int:
        """Return the stream of the next complete request."""
        number: int = self.next(h2.events.StreamEnded).stream_id
        return number

    def answer(self, stream: int, message: bytes = ANSWER) -> None:
        """Answer with one message."""
        self.h2.send_headers(stream, HEAD)
        self.h2.send_data(stream, message)
        self.h2.send_headers(stream, TRAILERS, end_stream=True)
        self.flush()


@contextlib.contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """Serve each connection by `serve` in a thread; yield the port."""
    threads: list[threading.Thread] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def handle(peer: socket.socket) -> None:
        with peer, contextlib.suppress(OSError, EOFError, h2.exceptions.ProtocolError):
            peer.settimeout(20)
            serve(peer)

    def accept() -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            threads.append(threading.Thread(target=handle, args=(peer,)))
            threads[-1].start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        accepting.join()
        for thread in threads:
            thread.join()


@contextlib.contextmanager
def h2_peer(serve: Callable[[H2Call], None], settings: dict[Any, int] | None = None) -> Iterator[int]:
    """Like `listening`, with an HTTP/2 connection that has sent its settings."""
    with listening(lambda sock: serve(H2Call(sock, settings or {}))) as port:
        yield port
