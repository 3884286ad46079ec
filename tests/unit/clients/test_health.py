"""`conch health`, the health check of containers."""

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from conch.clients.health import health


@pytest.fixture
def answering() -> Iterator[Callable[..., tuple[int, list[bytes]]]]:
    """Return a function that starts a peer with an answer per connection; it returns the port and the requests."""
    threads: list[threading.Thread] = []

    def start(*answers: bytes) -> tuple[int, list[bytes]]:
        listener = socket.create_server(("127.0.0.1", 0))
        requests: list[bytes] = []

        def serve() -> None:
            with listener:
                for answer in answers:
                    with listener.accept()[0] as connection:
                        requests.append(connection.recv(4096).splitlines()[0])
                        connection.sendall(answer)

        threads.append(threading.Thread(target=serve))
        threads[-1].start()
        return listener.getsockname()[1], requests

    yield start
    for thread in threads:
        thread.join()


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONCH_HTTP_PORT", "CONCH_HTTP_ADDRESS"):
        monkeypatch.delenv(name, raising=False)


def test_the_status_follows_the_servers_answer(
    answering: Callable[..., tuple[int, list[bytes]]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    port, requests = answering(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    monkeypatch.setenv("CONCH_HTTP_PORT", str(port))
    monkeypatch.setenv("CONCH_HTTP_ADDRESS", "0.0.0.0")
    assert health([]) == 0
    assert requests == [b"GET /v2/health/ready HTTP/1.1"]
    port, requests = answering(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
    assert health(["--live", f"--port={port}"]) == 1
    assert requests == [b"GET /v2/health/live HTTP/1.1"]
    port, _ = answering(b"")
    assert health(["--port", str(port)]) == 1
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == "ready"
    assert second.endswith(": status 400 Bad Request")
    assert third == f"not ready: 127.0.0.1:{port}: status "


def test_metadata_are_asked_for_where_the_server_is_ready(
    answering: Callable[..., tuple[int, list[bytes]]], capsys: pytest.CaptureFixture[str]
) -> None:
    ready, denied = b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 401 Unauthorized\r\n\r\n"
    port, requests = answering(ready, ready)
    assert health(["--metadata", f"--port={port}"]) == 0
    assert requests == [b"GET /v2/health/ready HTTP/1.1", b"GET /v2 HTTP/1.1"]
    port, _ = answering(ready, denied)
    assert health(["--metadata", f"--port={port}"]) == 1
    port, requests = answering(denied)
    assert health(["--metadata", f"--port={port}"]) == 1
    assert len(requests) == 1
    assert "not answering metadata requests: 127.0.0.1:" in capsys.readouterr().out


def test_a_server_that_does_not_listen_is_unhealthy(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert health([f"--port={port}"]) == 1
    assert f"not ready: 127.0.0.1:{port}: " in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--port=none"], ["--port", "0"], ["--ready"], ["--port"]])
def test_wrong_arguments_are_named(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert health(arguments) == 2
    assert capsys.readouterr().err.startswith("conch health: ")


def test_an_unknown_argument_is_answered_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert health(["--url", "localhost:8000"]) == 2
    known = "it takes --live, --metadata and --port PORT; the variable CONCH_HTTP_ADDRESS is the server's address"
    assert capsys.readouterr().err == f"conch health: unknown argument --url; {known}\n"
