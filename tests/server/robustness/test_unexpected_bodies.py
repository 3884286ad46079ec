"""Bodies where none is expected are refused before they come, and so are bodies of requests without a valid key."""

import re
import socket
import struct
from collections.abc import Iterator

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.server.robustness import grpc_input as h2
from tests.support.models import write_identity
from tests.support.server_process import ConchProcess

MIB = 2**20
SIZE = 48 * MIB
GETS = {
    "http": (
        "/v2 /v2/health/live /v2/health/ready /v2/models/stats /v2/trace/setting /v2/logging /v2/models/floats "
        "/v2/models/floats/ready /v2/models/floats/stats /v2/models/floats/config /v2/systemsharedmemory/status "
        "/v2/limits /health /ping /version /v1/models /openai/v1/models /v1/models/floats /none /v1/none"
    ),
    "openai": "/health/live /health/ready /health /ping /version /metrics /v1/models /none",
    "metrics": "/metrics /",
}
PATHS = [(port, path) for port, paths in GETS.items() for path in paths.split()]
SMALL_POSTS = [
    "/v2/repository/index",
    "/v2/repository/models/floats/unload",
    "/v2/logging",
    "/v2/trace/setting",
    "/v2/systemsharedmemory/region/a/register",
    "/v2/models/floats/trace/setting",
]
FRAMINGS = {
    "announced": f"Content-Length: {SIZE}\r\n\r\n",
    "small": "Content-Length: 24\r\n\r\nGET /v2 HTTP/1.1\r\nHost: ",
    "chunked": "Transfer-Encoding: chunked\r\n\r\n100000\r\nGET /v2 HTTP/1.1\r\n",
    "expected": f"Content-Length: {SIZE}\r\nExpect: 100-continue\r\n\r\n",
}
SMALL_CALLS = ["ServerLive", "ServerReady", "ServerMetadata", "ModelReady", "RepositoryIndex", "TraceSetting"]


@pytest.fixture(scope="module", params=["open", "keys"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    folder = tmp_path_factory.mktemp("bodies")
    write_identity(folder / "models", "floats", "FP32", -1)
    flags = ["--openai-port=0", "--openai-address=127.0.0.1"]
    if request.param == "keys":
        (folder / "keys").write_text("user infer,manage,metrics a-key-of-a-user\n")
        (folder / "keys").chmod(0o600)
        flags.append(f"--api-key-file={folder / 'keys'}")
    with ConchProcess(folder / "models", *flags, log=folder / "log") as server:
        match = re.search(r"Started OpenAI Service at 127\.0\.0\.1:(\d+)", server.text)
        assert match is not None
        server.ports["openai"] = int(match[1])
        yield server


def answer(port: int, request: bytes) -> tuple[int, bytes]:
    """Send bytes, and return status and bytes of the answer after which the server closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(request)
        received = b""
        while data := connection.recv(MIB):
            received += data
    return int(received.split(b" ", 2)[1]), received


@pytest.mark.parametrize(
    ("method", "framing"),
    [("HEAD", "announced"), ("DELETE", "announced"), *(("GET", framing) for framing in FRAMINGS)],
)
@pytest.mark.parametrize(("port", "path"), PATHS)
def test_a_request_without_content_has_no_body(
    server: ConchProcess, port: str, path: str, framing: str, method: str
) -> None:
    """The server answers although the body does not come, and reads no request behind it."""
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\n"
    status, received = answer(server.ports[port], (head + FRAMINGS[framing]).encode())
    assert status in (400, 401, 403, 404, 405, 413)
    if method == "GET" and path in ("/v2/health/live", "/ping", "/version", "/health"):
        assert status == 413
    assert received.count(b"HTTP/1.1 ") == 1
    assert b"Connection: close" in received


@pytest.mark.parametrize("framing", ["Content-Length: 0", "Transfer-Encoding: chunked"])
def test_an_empty_body_is_none(server: ConchProcess, framing: str) -> None:
    end = "" if framing.endswith("0") else "0\r\n\r\n"
    request = f"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n{framing}\r\n\r\n{end}"
    last = "GET /v2/health/ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    status, received = answer(server.ports["http"], (request + last).encode())
    assert status == 200
    assert received.count(b"HTTP/1.1 200 ") == 2


@pytest.mark.parametrize("path", SMALL_POSTS)
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_where_a_small_one_is_expected_is_small(server: ConchProcess, path: str, chunked: bool) -> None:
    framing = f"Content-Length: {SIZE}\r\n\r\n"
    if chunked:
        framing = "Transfer-Encoding: chunked\r\n\r\n" + "80000\r\n" + "x" * 2**19 + "\r\n"
    status, _ = answer(server.ports["http"], f"POST {path} HTTP/1.1\r\nHost: x\r\n{framing}".encode())
    assert status in (400, 401)


def call(server: ConchProcess, method: str, size: int) -> int:
    """Announce a message of `size` bytes and return the gRPC status, while the message does not come."""
    data = h2.frame(h2.DATA, 0, 1, b"\0" + struct.pack(">I", size) + bytes(1000))
    head = h2.frame(h2.HEADERS, h2.END_HEADERS, 1, h2.block(method))
    with socket.create_connection(("127.0.0.1", server.ports["grpc"]), timeout=30) as connection:
        connection.sendall(h2.OPEN + head + data)
        received = b""
        while (match := re.search(rb"grpc-status.(\d+)", received, re.DOTALL)) is None:
            data = connection.recv(MIB)
            assert data, received
            received += data
    return int(match[1])


@pytest.mark.parametrize("method", SMALL_CALLS)
def test_a_large_message_of_a_small_call_is_refused(server: ConchProcess, method: str) -> None:
    assert call(server, method, SIZE) in (8, 16)  # RESOURCE_EXHAUSTED, UNAUTHENTICATED


def test_an_empty_call_may_hold_fields_of_the_future(server: ConchProcess) -> None:
    request = service_pb2.ServerLiveRequest.FromString(b"\x7a\x02hi")
    with grpc.insecure_channel(server.grpc) as channel:
        assert service_pb2_grpc.GRPCInferenceServiceStub(channel).ServerLive(request).live
