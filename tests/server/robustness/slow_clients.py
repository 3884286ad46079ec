"""Clients that behave badly towards a real server, and what they must not be able to do to it."""

import contextlib
import json
import resource
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import psutil

from tests.server.chaos.accounting import is_worker
from tests.support.models import write_identity
from tests.support.server_process import ConchProcess

TIMEOUT_S = 30.0
MIB = 2**20


def write_models(root: Path) -> None:
    """Write what rude clients ask."""
    write_identity(root, "echo", "FP32", -1)
    write_identity(
        root, "slow", "FP32", -1, extra='parameters { key: "execute_delay_ms" value { string_value: "300" } }'
    )
    write_identity(
        root,
        "parallel",
        "FP32",
        -1,
        extra="instance_group [ { count: 64 kind: KIND_CPU } ] "
        'parameters { key: "execute_delay_ms" value { string_value: "300" } }',
    )


def infer_request(model: str, values: list[float], *fields: str, version: str = "1.1") -> bytes:
    """Return an inference request in JSON."""
    entry = {"name": "INPUT0", "shape": [len(values)], "datatype": "FP32", "data": values}
    body = json.dumps({"inputs": [entry]}).encode()
    head = [f"POST /v2/models/{model}/infer HTTP/{version}", "Host: x", f"Content-Length: {len(body)}", *fields]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def binary_request(model: str, size: int) -> bytes:
    """Return an inference request with `size` bytes of binary data, which are returned as such."""
    entry = {"name": "INPUT0", "shape": [size // 4], "datatype": "FP32", "parameters": {"binary_data_size": size}}
    head = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
    lines = [
        f"POST /v2/models/{model}/infer HTTP/1.1",
        "Host: x",
        f"Inference-Header-Content-Length: {len(head)}",
        f"Content-Length: {len(head) + size}",
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + head + bytes(size)


def connect(port: int, *, buffers: int | None = None) -> socket.socket:
    """Open a connection, on request with little room in this system for what goes out and comes back."""
    client = socket.socket()
    if buffers is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffers)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * buffers)
    client.settimeout(TIMEOUT_S)
    client.connect(("127.0.0.1", port))
    return client


def reset(client: socket.socket) -> None:
    """Close by RST: nothing that is under way is wanted."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def read_all(client: socket.socket) -> bytes:
    """Read until the server closes, or breaks off."""
    got = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := client.recv(65_536):
            got += piece
    return got


def send_what_it_takes(client: socket.socket, data: bytes) -> int:
    """Send until the server takes no more; returns how much it took."""
    client.settimeout(0.5)
    sent = 0
    with contextlib.suppress(TimeoutError, ConnectionError):
        while sent < len(data):
            sent += client.send(data[sent : sent + 262_144])
    client.settimeout(TIMEOUT_S)
    return sent


def until(done: Callable[[], bool], what: str) -> None:
    """Wait for something that the server does in its own time."""
    deadline = time.monotonic() + TIMEOUT_S
    while not done():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@contextmanager
def descriptors(number: int) -> Iterator[None]:
    """Let this process open `count` files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(number, hard)), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Bystander:
    """A well-behaved client beside the rude ones: asks all the time, and looks at the server's memory."""

    def __init__(self, conch: ConchProcess) -> None:
        self._conch = conch
        self._process = psutil.Process(conch.process.pid)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self.answered = 0
        self.slowest_s = 0.0
        self.largest = 0
        self.wrong: list[str] = []

    def __enter__(self) -> "Bystander":
        self._thread.start()
        self.served()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def served(self) -> None:
        """Wait for another right answer to a request that is sent from now on."""
        goal = self.answered + 2
        until(lambda: self.answered >= goal or bool(self.wrong), "others are not answered any more")
        assert not self.wrong

    def _ask(self) -> None:
        connection = HTTPConnection("127.0.0.1", self._conch.ports["http"], timeout=TIMEOUT_S)
        try:
            while not self._stop.is_set():
                self._ask_once(connection)
                self.largest = max(self.largest, self._process.memory_info().rss)
        except Exception as error:
            self.wrong.append(repr(error))
        finally:
            connection.close()

    def _ask_once(self, connection: HTTPConnection) -> None:
        value = float(self.answered % 1000)
        entry = {"name": "INPUT0", "shape": [1], "datatype": "FP32", "data": [value]}
        began = time.monotonic()
        connection.request("POST", "/v2/models/echo/infer", json.dumps({"inputs": [entry]}))
        answer = json.loads(connection.getresponse().read())
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)
        if answer["outputs"][0]["data"] != [value]:
            self.wrong.append(str(answer))
        self.answered += 1
        time.sleep(0.005)


def open_files(process: psutil.Process) -> int:
    """Count a server's descriptors but for its end of the connection to each worker: those stay for a while."""
    return process.num_fds() - sum(is_worker(child) for child in process.children())


@contextmanager
def endured(conch: ConchProcess, growth: int) -> Iterator[Bystander]:
    """Hold the server to its promises while the block is rude to it.

    Others are answered all the time and at the end; its memory never grows by more than `growth` bytes; afterwards it
    has as many files open as before, and has complained of nothing.
    """
    process = psutil.Process(conch.process.pid)
    complaints = conch.text.count("Traceback")
    before = open_files(process)
    with Bystander(conch) as bystander:
        memory = process.memory_info().rss
        yield bystander
        bystander.served()
    assert bystander.largest - memory < growth, f"grew by {(bystander.largest - memory) / MIB:.0f} MiB"
    until(lambda: open_files(process) <= before, f"{open_files(process) - before} descriptors are still open")
    assert conch.text.count("Traceback") == complaints
