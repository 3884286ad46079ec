"""`conch bench` against servers with keys and with TLS."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from tests.measure.bench.cli.bench_command import run_bench
from tests.support.models import write_identity
from tests.support.server_process import ConchProcess

pytestmark = pytest.mark.slow

QUICK = ("echo", "--concurrency=2", "--warm-up=100ms", "--duration=300ms")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("access")
    write_identity(folder / "models", "echo", "FP32", 4)
    (folder / "keys").write_text("ci infer,manage,metrics secret-of-the-test\n")
    (folder / "key").write_text("secret-of-the-test\n")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    certificate.private_key_pem.write_to_path(folder / "server.key")
    certificate.cert_chain_pems[0].write_to_path(folder / "server.pem")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ConchProcess]:
    flags = (
        f"--api-key-file={folder / 'keys'}",
        "--grpc-use-ssl=true",
        f"--grpc-server-cert={folder / 'server.pem'}",
        f"--grpc-server-key={folder / 'server.key'}",
    )
    with ConchProcess(folder / "models", *flags, log=folder / "log") as process:
        yield process


def test_a_key_is_needed_and_sent(server: ConchProcess, folder: Path, tmp_path: Path) -> None:
    refused = run_bench(tmp_path, server.http, *QUICK)
    assert refused.status == 2
    assert "key" in refused.err
    done = run_bench(tmp_path, server.http, *QUICK, f"--api-key-file={folder / 'key'}")
    assert done.measurement["outcomes"].keys() == {"ok"}, done.document


def test_keys_are_not_in_the_report(server: ConchProcess, folder: Path, tmp_path: Path) -> None:
    header = "authorization: Bearer secret-of-the-test"
    done = run_bench(tmp_path, server.http, *QUICK, "-H", header, f"--html={tmp_path / 'a.html'}")
    assert done.measurement["outcomes"]["ok"] > 0
    written = (tmp_path / "certificate.json").read_text() + (tmp_path / "a.html").read_text() + done.out + done.err
    assert "secret-of-the-test" not in written


def test_tls_is_verified(server: ConchProcess, folder: Path, tmp_path: Path) -> None:
    key = f"--api-key-file={folder / 'key'}"
    url = f"grpcs://{server.grpc}"
    unknown = run_bench(tmp_path, url, *QUICK, key)
    assert unknown.status == 2
    assert "certificate" in unknown.err
    done = run_bench(tmp_path, url, *QUICK, key, f"--ca-file={folder / 'ca.pem'}")
    assert done.measurement["outcomes"].keys() == {"ok"}, done.document
    trusting = run_bench(tmp_path, url, *QUICK, key, "--insecure")
    assert trusting.measurement["outcomes"].keys() == {"ok"}
