"""The load generator against Conch itself, and over TLS."""

import os
import signal
import socket
import ssl
from pathlib import Path

import numpy as np
import pytest
import trustme

from conch.measure.bench.generator import ClosedLoop, OpenLoop, PreparedRequest, Tls
from conch.measure.bench.load.process_load import ProcessLoad, check_descriptors, processes_needed
from conch.measure.bench.records import RequestOutcome
from tests.measure.bench.load.running import plan, run
from tests.measure.bench.load.servers import ANSWER, Handler, answering, serving
from tests.support.models import write_identity
from tests.support.server_process import ConchProcess

INFER = b"POST /v2/models/identity/infer HTTP/1.1\r\nContent-Type: application/json\r\n"
BODY = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[2],"data":[1.0,2.0]}]}'


@pytest.mark.slow
def test_requests_to_conch_are_answered(tmp_path: Path) -> None:
    write_identity(tmp_path, "identity", "FP32", 2)
    with ConchProcess(tmp_path, log=tmp_path / "log") as server:
        port = int(server.http.rpartition(":")[2])
        requests = [PreparedRequest(0, INFER, BODY), PreparedRequest(1, INFER, b"{}")]
        ran = run(plan(port, requests, ClosedLoop(8), requests=400), processes=2)
    assert ran.outcomes == {RequestOutcome.OK: 200, RequestOutcome.CLIENT_ERROR: 200}
    assert set(ran.records["request"][ran.records["status"] == 200]) == {0}


def over_tls(handle: Handler, authority: trustme.CA, *, client: bool = False) -> Handler:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    if client:
        authority.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED

    def accept(peer: socket.socket) -> None:
        with context.wrap_socket(peer, server_side=True) as secure:
            handle(secure)

    return accept


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def ca_file(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("tls") / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return str(path)


def test_tls_with_a_verified_name(authority: trustme.CA, ca_file: str) -> None:
    body = b"x" * 300_000
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    with serving(over_tls(answering(answer), authority)) as port:
        tls = Tls(ca_file, server_name="localhost")
        ran = run(plan(port, [PreparedRequest(0, INFER, body)], ClosedLoop(3), tls=tls, requests=9))
    assert ran.outcomes == {RequestOutcome.OK: 9}


def test_an_unknown_authority_is_reported_at_the_start(authority: trustme.CA) -> None:
    with serving(over_tls(answering(ANSWER), authority)) as port:
        load = ProcessLoad(plan(port, tls=Tls(server_name="localhost")))
        with pytest.raises(ConnectionError, match="certificate verify failed"):
            load.start()
        ran = run(plan(port, tls=Tls(verify=False), requests=2))
    assert ran.outcomes == {RequestOutcome.OK: 2}


def test_a_client_shows_its_certificate(authority: trustme.CA, ca_file: str, tmp_path: Path) -> None:
    mine = authority.issue_cert("client")
    certificate, key = str(tmp_path / "client.pem"), str(tmp_path / "client.key")
    mine.cert_chain_pems[0].write_to_path(certificate)
    mine.private_key_pem.write_to_path(key)
    with serving(over_tls(answering(ANSWER), authority, client=True)) as port:
        ran = run(plan(port, tls=Tls(ca_file, certificate, key, server_name="localhost"), requests=3))
    assert ran.outcomes == {RequestOutcome.OK: 3}


def test_processes_suffice_for_connections() -> None:
    assert processes_needed(plan(1, None, ClosedLoop(10))) == 1
    assert processes_needed(plan(1, None, ClosedLoop(10_000_000))) > 9
    with pytest.raises(ConnectionError, match=r"10,000,000 connections per process exceed the limit .* use at least"):
        check_descriptors(plan(1, None, ClosedLoop(10_000_000)), 10_000_000)
    check_descriptors(plan(1, None, OpenLoop(np.zeros(1))), 10_000_000)


def test_a_process_that_dies_is_reported() -> None:
    with serving(answering(ANSWER)) as port:
        load = ProcessLoad(plan(port, None, ClosedLoop(2)))
        load.start()
        os.kill(load._processes[0].pid, signal.SIGKILL)
        with pytest.raises(RuntimeError, match="process 0 of the load generator ended with SIGKILL"):
            load.collect(30)
