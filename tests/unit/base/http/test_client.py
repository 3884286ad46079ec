"""The client of simple requests, against a socket that answers as given."""

import threading
from collections.abc import Callable
from contextlib import suppress
from socket import create_server

import pytest

from conch.base.errors import Unavailable, Unreachable
from conch.base.http.client import HttpClient, HttpSettings, answers_ok

ONCE = HttpSettings.once(5.0, environment_proxies=False)


@pytest.fixture
def answering() -> Callable[[bytes], str]:
    """Return the URL of a server that answers each connection with these bytes."""

    def start(answer: bytes) -> str:
        listener = create_server(("127.0.0.1", 0))

        def serve() -> None:
            with listener, suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        connection.recv(65536)
                        connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}/x"

    return start


def read(url: str, max_bytes: int = 1000, settings: HttpSettings = ONCE) -> bytes:
    with HttpClient(settings).open("GET", url) as response:
        return response.read(max_bytes)


@pytest.mark.parametrize(
    "framing",
    [b"Content-Length: 5\r\n\r\nhello", b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", b"\r\nhello"],
)
def test_a_body_in_each_framing(framing: bytes, answering: Callable[[bytes], str]) -> None:
    url = answering(b"HTTP/1.1 200 OK\r\n" + framing)
    assert read(url) == b"hello"
    assert answers_ok(url, 5.0)
    with pytest.raises(Unavailable, match="a response of more than 4 bytes"):
        read(url, 4)
    with HttpClient(ONCE).open("GET", url) as response:
        assert response.start(4) == b"hell"


@pytest.mark.parametrize(
    "framing", [b"Content-Length: 9\r\n\r\nhello", b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"]
)
def test_a_body_that_is_cut_off(framing: bytes, answering: Callable[[bytes], str]) -> None:
    with pytest.raises(Unreachable, match="closed before the end of the response"):
        read(answering(b"HTTP/1.1 200 OK\r\n" + framing))


def test_causes_of_failures(answering: Callable[[bytes], str]) -> None:
    with pytest.raises(Unreachable, match=r"the server does not speak HTTP$"):
        read(answering(b"SSH-2.0-OpenSSH\r\n"))
    with create_server(("127.0.0.1", 0)) as listener:
        closed = f"http://127.0.0.1:{listener.getsockname()[1]}/x"
    with pytest.raises(Unreachable, match=r"connection refused$"):
        read(closed)
    assert not answers_ok(closed, 1.0)
    with pytest.raises(Unreachable, match=r"the host name cannot be resolved$"):
        read("http://name.invalid/")


def test_redirects_are_followed_unless_the_settings_say_otherwise(answering: Callable[[bytes], str]) -> None:
    target = answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    redirect = answering(f"HTTP/1.1 302 Found\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n".encode())
    assert read(redirect) == b"ok"
    with HttpClient(HttpSettings.once(5.0, max_redirects=0)).open("GET", redirect) as response:
        assert response.status == 302
    endless = answering(b"HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n")
    with pytest.raises(Unavailable, match="more than 5 redirects"):
        read(endless)
