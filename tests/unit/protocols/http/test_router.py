import pytest

from conch.protocols.http.errors import V2
from conch.protocols.http.message import HttpRequest
from conch.protocols.http.router import Route, Router, UnknownPaths, is_local_client


class Reply:
    """Keeps what is sent."""

    peer = "127.0.0.1"

    def __init__(self) -> None:
        self.status = 0
        self.body = b""

    def send(self, status: int, _headers: bytes, body: bytes = b"") -> None:
        self.status, self.body = status, body


def answer(request: HttpRequest, reply: Reply, *names: object) -> None:
    reply.send(200, b"", repr((request.path, *names)).encode())


def routed(method: bytes, path: str) -> tuple[int, bytes]:
    model = "/v2/models/{model}[/versions/{version}]/infer"
    routes = [
        Route((b"POST",), model, "inference", V2, answer, 8),
        Route((b"GET",), "/v1/files", "inference", V2, answer, 0),
        Route((b"GET",), "/v1/files/{file}", "inference", V2, answer, 0),
        Route((b"DELETE",), "/v1/files/{file}", "inference", V2, answer, 0),
    ]
    router = Router(routes, (UnknownPaths("", V2, ""),), alias=("/openai", "/v1/"))
    request, reply = HttpRequest(method, path, []), Reply()
    router(request, reply)
    again = Reply()
    router(HttpRequest(method, path, []), again)
    assert (again.status, again.body) == (reply.status, reply.body)
    return reply.status, reply.body


@pytest.mark.parametrize(
    ("method", "path", "names"),
    [
        (b"POST", "/v2/models/m/infer", ("/v2/models/m/infer", "m", None)),
        (b"POST", "/v2/models/m/versions/3/infer", ("/v2/models/m/versions/3/infer", "m", 3)),
        (b"POST", "/v2/models/f%C3%BCr/infer", ("/v2/models/f%C3%BCr/infer", "f\u00fcr", None)),
        (b"POST", "/v2/models/%C3%BC%2fm/infer", ("/v2/models/%C3%BC%2fm/infer", "%C3%BC%2fm", None)),
        (b"POST", "/v2/models/%6d/infer", ("/v2/models/%6d/infer", "%6d", None)),
        (b"POST", "/v2/models/m%ff/infer", ("/v2/models/m%ff/infer", "m%ff", None)),
        (b"GET", "/v1/files", ("/v1/files",)),
        (b"GET", "/v1/files/f", ("/v1/files/f", "f")),
        (b"DELETE", "/openai/v1/files/f", ("/v1/files/f", "f")),
        (b"GET", "/openai/v1/files", ("/v1/files",)),
    ],
)
def test_paths_and_their_names(method: bytes, path: str, names: tuple[object, ...]) -> None:
    assert routed(method, path) == (200, repr(names).encode())


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        (b"POST", "/v2/models//infer", 404),
        (b"POST", "/v2/models/m/versions/x/infer", 404),
        (b"POST", "/v2/models/m/versions/²/infer", 404),
        (b"POST", f"/v2/models/m/versions/{'9' * 5000}/infer", 400),
        (b"POST", "/v2/models/m/infer/", 404),
        (b"GET", "/v2/models/m/infer", 405),
        (b"POST", "/v1/files/f", 405),
        (b"GET", "/v1/files/", 404),
        (b"GET", "/openai/openai/v1/files", 404),
        (b"GET", "/" * 50_000, 404),
    ],
)
def test_other_paths(method: bytes, path: str, status: int) -> None:
    assert routed(method, path)[0] == status


def test_names_do_not_accumulate() -> None:
    router = Router([Route((b"GET",), "/{name}", "inference", V2, answer, 0)], ())
    for number in range(5000):
        router(HttpRequest(b"GET", f"/{number}", []), Reply())
    assert len(router._matches) <= 1024


@pytest.mark.parametrize(
    ("peer", "headers", "local"),
    [
        ("127.0.0.1", {"host": "localhost:8000"}, True),
        ("127.0.0.1", {"host": "127.0.0.1"}, True),
        ("::1", {"host": "[::1]:8000"}, True),
        ("::ffff:127.0.0.1", {"host": "conch.localhost"}, True),
        ("", {"host": "localhost"}, True),
        ("127.0.0.1", {"host": "localhost", "origin": "http://localhost:3000"}, True),
        ("10.0.0.1", {"host": "localhost"}, False),
        ("127.0.0.1", {"host": "rebound.example.com:8000"}, False),
        ("127.0.0.1", {"host": "localhost.example.com"}, False),
        ("127.0.0.1", {}, False),
        ("127.0.0.1", {"host": "localhost", "origin": "https://example.com"}, False),
        ("127.0.0.1", {"host": "localhost", "origin": "null"}, False),
        ("127.0.0.1", {"host": "127.0.0.1:8000", "origin": "http://127.0.0.1:8000"}, True),
        ("::1", {"host": "[::1]:8000", "origin": "http://[::1]:8000"}, True),
        ("127.0.0.1", {"host": "127.0.0.1", "origin": "http://203.0.113.5"}, False),
        ("127.0.0.1", {"host": "127.0.0.1", "origin": "http://[2001:db8::1]:8000"}, False),
        ("127.0.0.1", {"host": "127.0.0.1", "origin": "http://127.0.0.1.example.com"}, False),
        ("127.0.0.1", {"host": "localhost", "x-forwarded-for": "127.0.0.1"}, False),
    ],
)
def test_clients_of_this_machine(peer: str, headers: dict[str, str], local: bool) -> None:
    fields = [(name.encode(), value.encode()) for name, value in headers.items()]
    assert is_local_client(dict(fields), peer) is local
