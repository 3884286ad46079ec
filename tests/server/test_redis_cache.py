"""The response cache in Redis: Debian's Redis as the peer, shared by servers, absent, restarted and hostile."""

import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import redis
import tritonclient.http as http_client
import trustme

from tests.support.debian import debian_environment, debian_tool
from tests.support.models import tensor, write_python
from tests.support.ports import free_port
from tests.support.server_process import ConchProcess

PASSWORD = "of-a-test"
CONFIG = (
    f"input {tensor('IN', 'FP32', -1)} output [{tensor('OUT', 'FP32', -1)}, {tensor('TEXT', 'STRING', 1)}] "
    "response_cache { enable: true }"
)
# The second output tells executions apart.
EXECUTE = """
taken = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
if taken[0] < 0:
    return pb_utils.InferenceResponse(error=pb_utils.TritonError("no negative numbers"))
text = np.array([repr(time.monotonic_ns())], np.object_)
return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", taken * 2), pb_utils.Tensor("TEXT", text)])
"""


class RedisProcess:
    """Debian's redis-server on a free port, with a password, with TLS if there are files for it."""

    def __init__(self, folder: Path, tls: dict[str, Path] | None = None) -> None:
        self.port = free_port()
        self._flags = ["--port", str(self.port)]
        self._tls = {}
        if tls:
            self._flags = ["--port", "0", "--tls-port", str(self.port), "--tls-auth-clients", "no"]
            self._flags += ["--tls-cert-file", str(tls["cert"]), "--tls-key-file", str(tls["key"])]
            self._flags += ["--tls-ca-cert-file", str(tls["ca"])]
            self._tls = {"ssl": True, "ssl_ca_certs": str(tls["ca"])}
        self._folder = folder
        self.client = redis.Redis("localhost", self.port, password=PASSWORD, **self._tls)

    def start(self) -> None:
        flags = ["--save", "", "--requirepass", PASSWORD, "--bind", "127.0.0.1", "--dir", str(self._folder)]
        command = [str(debian_tool("redis-server")), *self._flags, *flags]
        with (self._folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=debian_environment())
        until(self._answers)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.ConnectionError:
            assert self._process.poll() is None, (self._folder / "redis.log").read_text()
            return False


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    process = RedisProcess(tmp_path_factory.mktemp("redis"))
    process.start()
    yield process
    process.stop()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_python(folder, "m", CONFIG, EXECUTE)
    write_python(folder, "ordered", CONFIG + " dynamic_batching { preserve_ordering: true }", EXECUTE)
    return folder


def flags(peer: RedisProcess, *more: str) -> list[str]:
    settings = ["host=localhost", f"port={peer.port}", f"password={PASSWORD}", "socket_timeout=5000", *more]
    return [f"--cache-config=redis,{setting}" for setting in settings]


@pytest.fixture(scope="module")
def server(peer: RedisProcess, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    with ConchProcess(models, *flags(peer), log=tmp_path_factory.mktemp("server") / "log") as running:
        yield running


def infer(server: ConchProcess, number: float, model: str = "m") -> tuple[list[float], bytes]:
    """The doubled number, and the mark of the execution that doubled it."""
    with http_client.InferenceServerClient(server.http) as client:
        taken = http_client.InferInput("IN", [1], "FP32")
        taken.set_data_from_numpy(np.array([number], np.float32))
        result = client.infer(model, [taken], request_id="7")
        assert result.get_response()["id"] == "7"
        return result.as_numpy("OUT").tolist(), result.as_numpy("TEXT")[0]


def stored(peer: RedisProcess, number: int) -> None:
    """Wait for entries: they are written after the response."""
    until(lambda: peer.client.dbsize() == number)


@pytest.fixture(autouse=True)
def empty(request: pytest.FixtureRequest) -> None:
    if "peer" in request.fixturenames:
        request.getfixturevalue("peer").client.flushall()


@pytest.mark.parametrize("model", ["m", "ordered"])
def test_an_equal_request_is_answered_by_redis(server: ConchProcess, peer: RedisProcess, model: str) -> None:
    first = infer(server, 3, model)
    stored(peer, 1)
    assert first[0] == [6]
    assert infer(server, 3, model) == first
    assert infer(server, 4, model)[1] != first[1]
    stored(peer, 2)
    assert [key.startswith(b"conch:") for key in peer.client.scan_iter()] == [True, True]


def test_errors_are_not_stored(server: ConchProcess, peer: RedisProcess) -> None:
    for _ in range(2):
        with pytest.raises(http_client.InferenceServerException, match="no negative numbers"):
            infer(server, -1)
    infer(server, 1)
    stored(peer, 1)


def test_servers_share_entries_of_equal_models_only(
    server: ConchProcess, peer: RedisProcess, models: Path, tmp_path: Path
) -> None:
    first = infer(server, 5)
    stored(peer, 1)
    write_python(tmp_path / "models", "m", CONFIG, EXECUTE)
    write_python(tmp_path / "models", "ordered", CONFIG, EXECUTE.replace("* 2", "* 3"))
    with ConchProcess(tmp_path / "models", *flags(peer), log=tmp_path / "log") as other:
        assert infer(other, 5) == first
        before = infer(server, 5, "ordered")
        stored(peer, 2)
        assert infer(other, 5, "ordered")[0] == [15] != before[0]
        assert 'nv_cache_num_hits_per_model{model="m",version="1"} 1' in other.metrics()
        assert "nv_cache_num_hits 1" in other.metrics()
        assert PASSWORD not in other.text


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"CNC1",
        b"CNC1\xff\xff\xff\xff",
        b"CNC1\x02\x00\x00\x00[]",
        b"CNC1\x06\x00\x00\x00[[],1]",
        b'CNC1\x20\x00\x00\x00[[["OUT","FP32",[1],8]],{"a":[]}]12345678',
        b'CNC1\x17\x00\x00\x00[[["OUT","FP32",[-1],4]],{}]1234',
    ],
)
def test_entries_that_are_not_responses_are_misses(server: ConchProcess, peer: RedisProcess, damaged: bytes) -> None:
    first = infer(server, 6)
    stored(peer, 1)
    (key,) = peer.client.keys()
    peer.client.set(key, damaged)
    second = infer(server, 6)
    assert (second[0], second[1] != first[1]) == ([12], True)
    until(lambda: peer.client.get(key) != damaged)
    assert infer(server, 6) == second


def test_another_type_of_value_is_a_miss(server: ConchProcess, peer: RedisProcess) -> None:
    infer(server, 7)
    stored(peer, 1)
    (key,) = peer.client.keys()
    peer.client.delete(key)
    peer.client.rpush(key, "x")
    assert infer(server, 7)[0] == [14]


def test_an_absent_redis_fails_no_request(models: Path, tmp_path: Path) -> None:
    peer = RedisProcess(tmp_path)
    with ConchProcess(models, *flags(peer), log=tmp_path / "log") as server:
        assert [infer(server, number)[0] for number in (1, 1, 2)] == [[2], [2], [4]]
        assert f"response cache: Redis at localhost:{peer.port} does not answer" in server.text
        peer.start()
        try:
            until(lambda: infer(server, 1)[0] == [2] and peer.client.dbsize())
            first = infer(server, 1)
            assert infer(server, 1) == first
            assert "the response cache answers again" in server.text
        finally:
            peer.stop()
        assert infer(server, 1)[0] == [2]
        assert PASSWORD not in server.text


def test_a_redis_that_does_not_reply_costs_its_timeout_once(models: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = [f"--cache-config=redis,{s}" for s in ("host=127.0.0.1", f"port={silent.getsockname()[1]}")]
        with ConchProcess(models, *address, "--cache-config=redis,socket_timeout=200", log=tmp_path / "log") as server:
            assert [infer(server, number)[0] for number in (1, 1, 2)] == [[2], [2], [4]]
            assert "does not answer (TimeoutError" in server.text


def test_tls_and_the_variables_of_triton(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    files = {name: tmp_path / name for name in ("ca", "cert", "key")}
    authority.cert_pem.write_to_path(str(files["ca"]))
    certificate.cert_chain_pems[0].write_to_path(str(files["cert"]))
    certificate.private_key_pem.write_to_path(str(files["key"]))
    peer = RedisProcess(tmp_path, files)
    peer.start()
    monkeypatch.setenv("TRITONCACHE_REDIS_PASSWORD", PASSWORD)
    settings = [f"--cache-config=redis,{s}" for s in ("host=localhost", f"port={peer.port}", f"cacert={files['ca']}")]
    try:
        with ConchProcess(models, *settings, log=tmp_path / "log") as server:
            first = infer(server, 3)
            stored(peer, 1)
            assert infer(server, 3) == first
            processes = subprocess.run(["pgrep", "-P", str(server.process.pid)], capture_output=True, text=True)
            environments = [Path(f"/proc/{pid}/environ").read_bytes() for pid in processes.stdout.split()]
            assert environments
            assert not any(PASSWORD.encode() in environment for environment in environments[1:])
    finally:
        peer.stop()
