"""Collectors of OpenTelemetry that hang, redirect or never end a reply, and secrets in their URLs and headers."""

import gzip
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
import trustme

from tests.server.clients import Client
from tests.support.models import write_identity
from tests.support.server_process import ConchProcess

ARRAY = {"INPUT0": np.array([1.5, -2], np.float32)}
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\n"
SECRET = "s3cret"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hostile-collectors") / "models"
    write_identity(root, "copy")
    return root


@contextmanager
def collector(reply: Callable[[socket.socket], None], *, peek: bool = False) -> Iterator[tuple[str, list[bytes]]]:
    """Accept connections and `reply` to the first bytes of each, left to it with `peek`.

    Yields its address and what it received.
    """
    received: list[bytes] = []

    def serve(client: socket.socket) -> None:
        with client, suppress(OSError):
            received.append(client.recv(65_536, socket.MSG_PEEK if peek else 0))
            reply(client)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}", received
        listener.shutdown(socket.SHUT_RDWR)


def flags_of(base: str, *, spans_ms: int = 100) -> list[str]:
    return [
        f"--metrics-config=otlp_endpoint=http://{base}/v1/metrics?token={SECRET}",
        "--metrics-config=otlp_interval_ms=100",
        *(f"--trace-config={option}" for option in ("mode=opentelemetry", "level=TIMESTAMPS", "rate=1")),
        f"--trace-config=opentelemetry,url=http://{base}/v1/traces?token={SECRET}",
        f"--trace-config=opentelemetry,bsp_schedule_delay={spans_ms}",
    ]


def hang(client: socket.socket) -> None:
    while client.recv(65_536):
        pass


def redirect(client: socket.socket) -> None:
    client.sendall(b"HTTP/1.1 307 Temporary Redirect\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n")


def endless(client: socket.socket) -> None:
    client.sendall(HEAD + b"\r\n")
    while True:
        client.sendall(bytes(2**20))


def bomb(client: socket.socket) -> None:
    body = gzip.compress(bytes(2**29), 1)
    client.sendall(HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


def trickle(client: socket.socket) -> None:
    client.sendall(HEAD + b"Content-Length: 60000\r\n\r\n")
    while True:
        client.sendall(b"x")
        time.sleep(0.2)


@pytest.mark.parametrize("reply", [endless, bomb])
def test_a_reply_of_any_size_costs_little_memory(
    models: Path, tmp_path: Path, reply: Callable[[socket.socket], None]
) -> None:
    with (
        collector(reply) as (address, received),
        ConchProcess(models, *flags_of(address), log=tmp_path / "log") as conch,
        Client(conch, "http") as client,
    ):
        before = peak_bytes(conch.process.pid)
        deadline = time.monotonic() + 60
        while len(received) < 10 and time.monotonic() < deadline:
            client.ask("copy", ARRAY)
            time.sleep(0.02)
        assert len(received) >= 10
        assert peak_bytes(conch.process.pid) - before < 100 * 2**20


def peak_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


@pytest.mark.parametrize("reply", [hang, trickle])
def test_a_collector_that_hangs_does_not_delay_the_end_of_the_server(
    models: Path, tmp_path: Path, reply: Callable[[socket.socket], None]
) -> None:
    flags = [*flags_of("127.0.0.1:9"), "--exit-timeout-secs=20"]
    with collector(reply) as (address, received):
        flags[0] = f"--metrics-config=otlp_endpoint=http://{address}/v1/metrics"
        with ConchProcess(models, *flags, log=tmp_path / "log") as conch:
            while not received:
                time.sleep(0.02)
        # `with` has checked that the exit status is 0.
    assert "exiting without waiting" not in conch.text


def test_a_collector_with_an_unknown_certificate(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its authority is that of OTEL_EXPORTER_OTLP_CERTIFICATE, whatever the machine's; requests are served anyway."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    answers: list[bytes] = []

    def answer(client: socket.socket) -> None:
        with suppress(ssl.SSLError), context.wrap_socket(client, server_side=True) as wrapped:
            answers.append(wrapped.recv(65_536))
            wrapped.sendall(HEAD + b"Content-Length: 0\r\n\r\n")

    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other"))
    authority.cert_pem.write_to_path(str(tmp_path / "own"))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "other"))
    with collector(answer, peek=True) as (address, _):
        flags = secure(flags_of(address))
        with ConchProcess(models, *flags, log=tmp_path / "log") as conch, Client(conch, "http") as client:
            client.ask("copy", ARRAY)
            for what in ("metrics", "traces"):
                text = (
                    f"cannot send {what} to 'https://{address}/v1/{what}': the certificate of the server is not trusted"
                )
                conch.until_logged(text)
            client.ask("copy", ARRAY)
        assert answers == []
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(tmp_path / "own"))
        with ConchProcess(models, *flags, log=tmp_path / "trusted"):
            until(lambda: answers)


def secure(flags: list[str]) -> list[str]:
    return [flag.replace("http://", "https://") for flag in flags]


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_redirect_is_a_failure(models: Path, tmp_path: Path) -> None:
    with (
        collector(redirect) as (address, _),
        ConchProcess(models, *flags_of(address), log=tmp_path / "log") as conch,
        Client(conch, "http") as client,
    ):
        client.ask("copy", ARRAY)
        reason = "the collector answers 307 Temporary Redirect"
        conch.until_logged(f"cannot send metrics to 'http://{address}/v1/metrics': {reason}")
        conch.until_logged(f"cannot send traces to 'http://{address}/v1/traces': {reason}")


def test_secrets_of_urls_and_headers_are_not_shown(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"Bearer {SECRET}")
    flags = flags_of(f"user:{SECRET}@127.0.0.1:9")
    with ConchProcess(models, *flags, log=tmp_path / "log") as conch, Client(conch, "http") as client:
        client.ask("copy", ARRAY)
        conch.until_logged("cannot send metrics to 'http://127.0.0.1:9/v1/metrics': connection refused")
        conch.until_logged("cannot send traces to 'http://127.0.0.1:9/v1/traces': connection refused")
        conch.until_logged("a header of OTEL_EXPORTER_OTLP_HEADERS is not valid")
        with urllib.request.urlopen(f"http://{conch.http}/v2/trace/setting", timeout=60) as response:
            settings = response.read().decode()
    assert '"url":"http://127.0.0.1:9/v1/traces"' in settings
    assert SECRET not in conch.text + settings
