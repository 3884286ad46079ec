"""POST requests: certificates, redirects, replies that are late, large or incomplete."""

import http.server
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from conch.operate.alerts.chat_services import OutgoingPost
from conch.operate.alerts.posting import HttpPoster, Unanswered

PATH = "/secret-path-of-a-robot"


REQUESTS: list[str] = []


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        REQUESTS.append(self.path)
        self.rfile.read(int(self.headers["Content-Length"]))
        body = b"x" * 1_000_000 if self.path == "/large" else b"{}"
        self.send_response(302 if self.path == "/moved" else 200)
        self.send_header("Location", "/elsewhere")
        self.send_header("Retry-After", "5")
        self.send_header("Content-Length", str(len(body) + (100 if self.path == "/short" else 0)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(context: ssl.SSLContext | None = None) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=lambda: server.serve_forever(0.05), daemon=True).start()
    yield f"{'https' if context else 'http'}://localhost:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_certificates_are_verified(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    with serving(context) as url:
        post = OutgoingPost(url + PATH, b"{}")
        with pytest.raises(Unanswered, match="the certificate of the server is not trusted") as raised:
            HttpPoster()(post)
        assert PATH not in str(raised.value)
        assert HttpPoster(tmp_path / "ca.pem")(post).status == 200


def test_certificates_that_are_not_the_targets(tmp_path: Path) -> None:
    """Of another authority, for another host, or expired: no byte of the message is sent."""
    authority, other = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    past = datetime(2020, 1, 1, tzinfo=UTC)
    for certificate in (
        other.issue_cert("localhost"),
        authority.issue_cert("example.com"),
        authority.issue_cert("localhost", not_before=past, not_after=past + timedelta(days=1)),
    ):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate.configure_cert(context)
        with serving(context) as url:
            seen = len(REQUESTS)
            with pytest.raises(Unanswered, match="the certificate of the server is not trusted") as raised:
                HttpPoster(tmp_path / "ca.pem")(OutgoingPost(url + PATH, b"{}", {"Authorization": "Bearer secret"}))
            assert "secret" not in str(raised.value)
            assert PATH not in str(raised.value)
            assert len(REQUESTS) == seen


def test_a_redirect_to_plain_http_gets_nothing(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    with serving(context) as url:
        seen = len(REQUESTS)
        reply = HttpPoster(tmp_path / "ca.pem")(OutgoingPost(url + "/moved", b"{}", {"Authorization": "Bearer secret"}))
        assert (reply.status, len(REQUESTS)) == (302, seen + 1)


def test_replies() -> None:
    with serving() as url:
        poster = HttpPoster()
        reply = poster(OutgoingPost(url + "/moved", b"{}"))
        assert (reply.status, reply.headers["retry-after"]) == (302, "5")  # not followed
        assert 65_536 <= len(poster(OutgoingPost(url + "/large", b"{}")).body) < 100_000
        with pytest.raises(Unanswered, match="the connection was closed before the end of the response"):
            poster(OutgoingPost(url + "/short", b"{}"))


def test_failures_have_no_path() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        threading.Thread(target=lambda: server.accept()[0].close(), daemon=True).start()
        with pytest.raises(Unanswered, match=r"127\.0\.0\.1: the connection was closed") as raised:
            HttpPoster()(OutgoingPost(f"http://127.0.0.1:{port}{PATH}", b"{}"))
        assert PATH not in str(raised.value)
    for url in (f"http://127.0.0.1:{port}{PATH}", f"http://nonexistent.invalid{PATH}"):
        with pytest.raises(Unanswered) as raised:
            HttpPoster()(OutgoingPost(url, b"{}"))
        assert PATH not in str(raised.value)
