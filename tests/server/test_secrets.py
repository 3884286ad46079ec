"""Keys stay with the server: what its children, models and engines among them, can read of it."""

import ctypes
import json
import os
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from conch.server.backends.processes.launch import ChildEnvironment
from tests.support.models import tensor, write_python, write_scripted
from tests.support.server_process import ConchProcess

SECRETS = {
    "openai": "first-s3cret",
    "variable": "second-s3cret",
    "address": "third-s3cret",
    "grpc": "fourth-s3cret",
    "redis": "fifth-s3cret",
    "collector": "sixth-s3cret",
    "signature": "seventh-s3cret",
}
INPUT = f"input {tensor('PATH', 'STRING', 1)} output {tensor('FOUND', 'STRING', 1)}"
ALWAYS = ("PYTHONUNBUFFERED", "PYTHONIOENCODING")
# Reads a file for the client.
READER = """
path = request.inputs()[0].as_numpy()[0].decode().replace("PARENT", str(os.getppid()))
try:
    found = open(path, "rb").read()
except OSError as error:
    found = os.strerror(error.errno).encode()
return pb_utils.InferenceResponse([pb_utils.Tensor("FOUND", np.array([found.hex()], dtype=object))])
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("secrets") / "models"
    write_python(root, "reader", INPUT, READER)
    own = f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{sys.prefix}" }} }}'
    write_python(root, "elsewhere", f"{INPUT} {own}", READER)
    write_scripted(root, "engine", {})
    return root


def renounce_capabilities() -> None:
    """Be a user like any other, root or not: the same user's processes are what is to be kept apart."""
    libc = ctypes.CDLL(None)
    libc.prctl(28, 3)  # PR_SET_SECUREBITS: a program run by root gains none either
    libc.capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)())


@contextmanager
def served(models: Path, *flags: str, log: Path) -> Iterator[ConchProcess]:
    server = ConchProcess(models, *flags, log=log)
    server._prepare = renounce_capabilities
    with server:
        yield server


@pytest.fixture(scope="module")
def conch(models: Path) -> Iterator[ConchProcess]:
    log = models.parent / "log"
    variables = {
        "CONCH_OPENAI_API_KEY": SECRETS["variable"],
        "CONCH_GRPC_RESTRICTED_PROTOCOL": f"shared-memory:key={SECRETS['grpc']}",
        "MODEL_SETTING": "kept",
        "CLOUD_SECRET": "denied",
    }
    flags = (f"--openai-api-key={SECRETS['openai']}", "--model-env-deny=CLOUD_*", "--process-debugging=false")
    restricted = f"--http-restricted-api=shared-memory:key={SECRETS['address']}"
    others = (
        "--cache-config=redis,host=127.0.0.1",
        f"--cache-config=redis,password={SECRETS['redis']}",
        "--trace-config=mode=opentelemetry",
        f"--trace-config=opentelemetry,url=http://user:{SECRETS['collector']}@127.0.0.1:9/?key={SECRETS['signature']}",
    )
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        with served(models, *flags, restricted, *others, log=log) as server:
            yield server


def read(server: ConchProcess, model: str, path: str) -> bytes:
    body = {"inputs": [{"name": "PATH", "shape": [1], "datatype": "BYTES", "data": [path]}]}
    url = f"http://{server.http}/v2/models/{model}/infer"
    key = {"Authorization": f"Bearer {SECRETS['openai']}"}  # which inference needs as /v1 does
    request = urllib.request.Request(url, json.dumps(body).encode(), key)
    with urllib.request.urlopen(request, timeout=60) as reply:
        return bytes.fromhex(json.load(reply)["outputs"][0]["data"][0])


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root sees what others are not to see")


@as_root
def test_no_process_can_read_a_key(conch: ConchProcess) -> None:
    server = psutil.Process(conch.process.pid)
    family = [server, *server.children(recursive=True)]
    assert len(family) >= 5  # the fork server, two models, an engine
    for process in family:
        for name in ("cmdline", "environ"):
            data = Path(f"/proc/{process.pid}/{name}").read_bytes()
            assert not [secret for secret in SECRETS.values() if secret.encode() in data], (process, name)
    assert b"--openai-api-key=************" in Path(f"/proc/{server.pid}/cmdline").read_bytes()
    assert b"--http-restricted-api=" in Path(f"/proc/{server.pid}/cmdline").read_bytes()
    assert b"--cache-config=redis,password=************" in Path(f"/proc/{server.pid}/cmdline").read_bytes()
    assert (
        b"opentelemetry,url=http://user:************@127.0.0.1:9/?***"
        in Path(f"/proc/{server.pid}/cmdline").read_bytes()
    )


@pytest.mark.parametrize("model", ["reader", "elsewhere"])
def test_a_model_gets_the_environment_but_for_what_is_denied(conch: ConchProcess, model: str) -> None:
    environ = read(conch, model, "/proc/self/environ")
    assert b"MODEL_SETTING=kept" in environ
    assert b"CLOUD_SECRET" not in environ
    assert b"CONCH_" not in environ


@pytest.mark.parametrize("model", ["reader", "elsewhere"])
@pytest.mark.parametrize("name", ["environ", "maps", "fd/0"])
def test_a_model_cannot_look_into_the_server(conch: ConchProcess, model: str, name: str) -> None:
    assert read(conch, model, f"/proc/PARENT/{name}") == b"Permission denied"


def test_the_server_can_be_opened_for_debuggers(models: Path, tmp_path: Path) -> None:
    flags = ("--process-debugging=true", f"--openai-api-key={SECRETS['openai']}")
    with served(models, *flags, log=tmp_path / "log") as server:
        assert b"PATH=" in read(server, "reader", "/proc/PARENT/environ")


@as_root
def test_a_model_has_no_descriptor_of_the_server(conch: ConchProcess) -> None:
    server = psutil.Process(conch.process.pid)
    sockets = {name for name in descriptors(server.pid) if name.startswith("socket:")}
    for process in server.children(recursive=True):
        held = descriptors(process.pid)
        assert not sockets.intersection(held), process
        assert len(held) <= 10, held


def descriptors(pid: int) -> list[str]:
    """What a process has open."""
    return [str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()]


def test_patterns_choose_variables() -> None:
    environ = {"PATH": "/bin", "CONCH_ID": "x", "AWS_KEY": "k", "HF_TOKEN": "t", "LC_ALL": "C"}
    assert set(ChildEnvironment().variables(environ)) == {"PATH", "AWS_KEY", "HF_TOKEN", "LC_ALL", *ALWAYS}
    allowed = ChildEnvironment(allow=("HF_*",)).variables(environ)
    assert set(allowed) == {"PATH", "HF_TOKEN", "LC_ALL", *ALWAYS}
    denied = ChildEnvironment(allow=("HF_*", "AWS_*"), deny=("AWS_*", "LC_*")).variables(environ)
    assert set(denied) == {"PATH", "HF_TOKEN", *ALWAYS}
