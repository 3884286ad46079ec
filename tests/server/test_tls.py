"""TLS on the HTTP, OpenAI and metrics ports, and certificates that are replaced while the server runs."""

import gzip
import http.client
import os
import re
import socket
import ssl
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import tritonclient.http as http_client
import trustme

from conch.base.errors import Unavailable
from conch.clients.health import health
from conch.clients.server_view import ServerReader, find_address
from tests.support.models import write_identity
from tests.support.server_process import ConchProcess

FRONTENDS = int(os.environ.get("CONCH_FRONTEND_PROCESSES", "1"))  # of the servers of a whole run


class Files:
    """The files of a certificate authority and of the server, and of a client."""

    def __init__(self, folder: Path) -> None:
        self.authority = trustme.CA()
        self.root, self.cert, self.key, self.client = (folder / name for name in ("root", "cert", "key", "client"))
        self.authority.cert_pem.write_to_path(str(self.root))
        self.authority.issue_cert("client").private_key_and_cert_chain_pem.write_to_path(str(self.client))
        self.renew()

    def renew(self) -> None:
        """Write another certificate, as a tool that renews it does: each file is replaced."""
        certificate = self.authority.issue_cert("localhost")
        for path, blob in ((self.cert, certificate.cert_chain_pems[0]), (self.key, certificate.private_key_pem)):
            new = path.with_suffix(".new")
            blob.write_to_path(str(new))
            new.replace(path)

    def context(self, *, with_certificate: bool = True) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.root))
        if with_certificate:
            context.load_cert_chain(self.client)
        return context


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server(files: Files, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    folder = tmp_path_factory.mktemp("tls")
    write_identity(folder / "models", "m", "FP32", 4)
    flags = [f"--{port}-server-{name}={getattr(files, name)}" for port in ("http", "grpc") for name in ("cert", "key")]
    flags += ["--http-use-ssl-mutual=true", f"--http-root-cert={files.root}", "--metrics-use-ssl=true"]
    flags += ["--openai-port=0", "--grpc-use-ssl=true"]
    with ConchProcess(folder / "models", *flags, log=folder / "log", wait="") as running:
        until(lambda: status(running, files.context()) == 200)
        yield running


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def status(server: ConchProcess, context: ssl.SSLContext, port: int = 0, path: str = "/v2/health/ready") -> int:
    connection = http.client.HTTPSConnection("localhost", port or server.ports["http"], timeout=60, context=context)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def serial(port: int) -> bytes:
    """The certificate that a port shows."""
    context = ssl._create_unverified_context()
    with socket.create_connection(("localhost", port), 60) as plain, context.wrap_socket(plain) as wrapped:
        return wrapped.getpeercert(binary_form=True) or b""


def test_tritons_client_over_tls(server: ConchProcess, files: Files) -> None:
    options = {"ca_certs": str(files.root), "certfile": str(files.client), "keyfile": str(files.client)}
    address = f"localhost:{server.ports['http']}"
    with http_client.InferenceServerClient(address, ssl=True, ssl_options=options) as client:
        assert client.is_server_ready()
        assert client.get_model_metadata("m")["name"] == "m"


def test_a_large_body_over_tls(server: ConchProcess, files: Files) -> None:
    connection = http.client.HTTPSConnection("localhost", server.ports["http"], timeout=60, context=files.context())
    connection.request("POST", "/v2/models/m/infer", b"[" + b"1," * 2_000_000 + b"1]")
    assert connection.getresponse().status == 400
    connection.close()


def test_clients_need_a_certificate_and_tls(server: ConchProcess, files: Files) -> None:
    with pytest.raises((ssl.SSLError, ConnectionError)):
        status(server, files.context(with_certificate=False))
    with pytest.raises((OSError, http.client.HTTPException)):
        urllib.request.urlopen(f"http://localhost:{server.ports['http']}/v2", timeout=60)
    assert status(server, files.context()) == 200


def test_the_openai_port_and_metrics(server: ConchProcess, files: Files) -> None:
    (port,) = re.findall(r"Started OpenAI Service at \S*:(\d+)", server.text)
    assert status(server, files.context(), int(port), "/v1/models") == 200
    # Scrapers need no certificate.
    context = files.context(with_certificate=False)
    assert status(server, context, server.ports["metrics"], "/metrics") == 200


def test_a_renewed_certificate_is_used_without_a_restart(server: ConchProcess, files: Files) -> None:
    ports = [server.ports[name] for name in ("metrics", "grpc")]
    before = [serial(port) for port in ports]
    kept = http.client.HTTPSConnection("localhost", server.ports["http"], timeout=60, context=files.context())
    kept.request("GET", "/v2/health/ready")
    kept.getresponse().read()
    # First a key that does not fit: halfway through a renewal.
    files.key.write_bytes(trustme.CA().issue_cert("localhost").private_key_pem.bytes())
    until(lambda: "stays in use" in server.text)
    assert [serial(port) for port in ports] == before
    files.renew()
    until(lambda: all(serial(port) != old for port, old in zip(ports, before, strict=True)))
    # Of the four ports, each process loads those that it serves.
    until(lambda: server.text.count("loaded the certificate") == (4 if FRONTENDS < 2 else 1 + 3 * FRONTENDS))
    assert status(server, files.context()) == 200
    kept.request("GET", "/v2/health/ready")  # an open connection stays
    assert kept.getresponse().status == 200
    kept.close()


@pytest.mark.parametrize(
    ("accepted", "coding"), [("gzip", "gzip"), ("deflate, gzip;q=0.5", None), ("identity", None), ("", None)]
)
def test_metrics_are_compressed_for_prometheus(
    server: ConchProcess, files: Files, accepted: str, coding: str | None
) -> None:
    url = f"https://localhost:{server.ports['metrics']}/metrics"
    request = urllib.request.Request(url, headers={"Accept-Encoding": accepted})
    with urllib.request.urlopen(request, timeout=60, context=files.context()) as response:
        text = response.read()
        assert response.headers["Content-Encoding"] == coding
    assert b"nv_cpu_memory_total_bytes" in (gzip.decompress(text) if coding else text)


def test_other_programs_of_the_user_compare_the_certificate(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`conch ps`, `top`, `stop` and `doctor`, and `conch health`; the name in the certificate is not 127.0.0.1."""
    flags = ["--http-use-ssl=true", f"--http-server-cert={files.cert}", f"--http-server-key={files.key}"]
    write_identity(tmp_path / "models", "m", "FP32", 4)
    with ConchProcess(tmp_path / "models", *flags, log=tmp_path / "log", wait="") as running:
        context = files.context(with_certificate=False)
        until(lambda: "http" in running.ports and status(running, context) == 200)
        until(lambda: find_address(running.http, None).certificate)
        address = find_address(running.http, None)
        assert address.url == f"https://{running.http}"
        assert address.metrics == f"http://127.0.0.1:{running.ports['metrics']}"
        reader = ServerReader(address)
        reading = reader.read()
        assert ([model.name for model in reading.models], reading.problems) == (["m"], [])
        for certificate, reason in ((files.root, "not trusted"), (tmp_path / "absent", "cannot read its certificate")):
            with pytest.raises(Unavailable, match=reason):
                ServerReader(replace(address, certificate=str(certificate))).read()
        port = f"--port={running.ports['http']}"
        assert health([port]) == 1
        monkeypatch.setenv("CONCH_HTTP_USE_SSL", "true")
        assert health(["--metadata", port]) == 0
        before = serial(running.ports["http"])
        files.renew()
        until(lambda: serial(running.ports["http"]) != before)
        assert reader.read().models


def test_other_programs_of_the_user_have_no_certificate_of_a_client(server: ConchProcess) -> None:
    until(lambda: find_address(server.http, None).certificate)
    address = find_address(server.http, None)
    assert address.metrics == f"https://127.0.0.1:{server.ports['metrics']}"
    with pytest.raises(Unavailable, match="requires a certificate from clients"):
        ServerReader(address).read()
