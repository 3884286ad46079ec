"""A model that attacks the server from inside of its process, while clients of another model are served."""

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.models import tensor, write_python
from tests.support.server_process import ConchProcess

# What the hostile model does with the code that a request brings: `raw`, `send` and `answer` speak the protocol.
EXECUTE = r"""
import socket, array, struct, urllib.request
from conch_child.ipc.wire import PREFIX, encode_to_server
from conch_child.python.api.session import current
channel, key = current().channel, request._require_responder().key
raw = channel._connection.sendall

def header(content):
    return PREFIX.pack(len(content), 0) + content

def send(*message, payload=b""):
    raw(encode_to_server(message, [payload], len(payload)))

def call(**changes):
    fields = dict(name="other", version=-1, id="", correlation=0, flags=0, timeout=0, parameters=None, outputs=(),
        traced=0, inputs=())
    fields.update(changes)
    return tuple(fields.values())

def waiting_call(key):
    fields = call(inputs=[("IN", "BYTES", (1,), -1, 5)])
    return encode_to_server((40, (), key, (), False, False, fields), [b"\x01\x00\x00\x00x"], 5)

found = [""]
exec(request.inputs()[0].as_numpy()[0].decode(), {**globals(), **locals()})
return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([found[0].encode()], dtype=np.object_))])
"""
CONFIG = f"input {tensor('IN', 'STRING', 1)} output {tensor('OUT', 'STRING', 1)}"
ECHO = 'return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())])'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    folder = tmp_path_factory.mktemp("hostile")
    models = folder / "models"
    write_python(models, "hostile", CONFIG, EXECUTE)
    write_python(models, "other", CONFIG, ECHO)
    with ConchProcess(models, log=folder / "log") as conch:
        yield conch


def infer(server: ConchProcess, model: str, text: str) -> tuple[int, Any]:
    """Return the status of a request and what it returns: the output or the error."""
    body = {"inputs": [{"name": "IN", "datatype": "BYTES", "shape": [1], "data": [text]}]}
    url = f"http://{server.http}/v2/models/{model}/infer"
    try:
        with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=60) as response:
            return response.status, json.load(response)["outputs"][0]["data"][0]
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["error"]


class OtherClients:
    """Clients of the other model. At the end each of their requests has been answered."""

    def __init__(self, server: ConchProcess) -> None:
        self.answers = 0
        self.failures: list[Any] = []
        self._server = server
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(2)]

    def _run(self) -> None:
        while not self._stop.is_set():
            answer = infer(self._server, "other", "hello")
            self.answers += 1
            if answer != (200, "hello"):
                self.failures.append(answer)

    def __enter__(self) -> "OtherClients":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert not self.failures
        assert self.answers


FATAL = {
    "self-referencing tuple": r"raw(header(b'\xa8\x02\x00\x00\x00i\x22\x00\x00\x00r\x00\x00\x00\x00'))",
    "200 million items": "raw(header(b'(' + struct.pack('<I', 200_000_000) + b'N' * 20))",
    "negative shape": (
        "send(34, (), [(key, True, None, (('OUT', 'FP32', (-1, -1), -1, 4),), None)], 0, 0, payload=b'1234')"
    ),
    "many answers": "raw(encode_to_server((34, (), (), 0, 0)) * 100_000)",
    "call of a number": "send(40, (), 1, (), False, False, call(name=7))",
    "call without fields": "send(40, (), 1, (), False, False, ())",
    "call with a tensor outside": (
        "send(40, (), 1, (), False, False, call(inputs=[('IN', 'UINT8', (9,), 0, 9), ('IN', 'UINT8', (9,), 5, 2**40)]))"
    ),
    "call of 2^64 flags": "send(40, (), 1, (), False, False, call(flags=2**64 - 1))",
    "call with a key that is a list": "send(40, (), [], (), False, False, call())",
    "two calls of one key": "raw(waiting_call(9**9) * 2)",
    "callers are an object": "send(40, (), 1, {}, False, False, call())",
    "version -2": "send(40, (), 1, (), False, False, call(version=-2))",
    "parameters of a call": "send(40, (), 1, (), False, False, call(parameters={'a': {}}))",
    "outputs of a call": "send(40, (), 1, (), False, False, call(outputs=[1]))",
    "read more than there is": "raw(waiting_call(9**9) + encode_to_server((42, 9**9, 2**60)))",
    "cancel a list": "send(41, [])",
    "unknown operation": "send(43, 1, 9, 'other', '', ())",
    "operation is a list": "send(43, 1, [], 'other', '', ())",
    "load of a number": "send(43, 1, 1, 5, '', ())",
    "load with files outside": "send(43, 1, 1, 'other', '{}', [('file:1/model.py', 2**40, 9)])",
}


@pytest.mark.parametrize("name", FATAL)
def test_an_attack_ends_the_process_of_the_model_only(server: ConchProcess, name: str) -> None:
    killed = server.text.count("killed: malformed IPC message")
    with OtherClients(server):
        status, answer = infer(server, "hostile", f"{FATAL[name]}\ntime.sleep(60)")
        assert (status, answer.split(". ")[0]) == (500, "Stub process 'hostile_0' is not healthy"), answer
        server.until("/v2/models/hostile/ready")
    assert server.process.poll() is None
    assert server.text.count("killed: malformed IPC message") == killed + 1
    assert infer(server, "hostile", "found[0] = 'back'") == (200, "back")


def test_calls_without_end_are_refused_and_freed(server: ConchProcess) -> None:
    """30,000 calls that no answer is awaited of, more than may be open."""
    flood = """
inputs = [("IN", "BYTES", (1,), -1, 5)]
for number in range(1_000_000, 1_030_000):
    send(40, (), number, (), False, False, call(inputs=inputs), payload=b"\\x01\\x00\\x00\\x00x")
found[0] = "sent"
"""
    with OtherClients(server):
        assert infer(server, "hostile", flood)[0] in (200, 500)
    server.until("/v2/models/hostile/ready")
    assert infer(server, "hostile", "found[0] = 'back'") == (200, "back")


def test_a_process_that_does_not_read_its_answers_is_ended(tmp_path: Path) -> None:
    """Answers to its calls fill the shared memory, then the socket."""
    write_python(tmp_path / "models", "hostile", CONFIG, EXECUTE)
    write_python(tmp_path / "models", "other", CONFIG, ECHO)
    large = "return pb_utils.InferenceResponse([pb_utils.Tensor('OUT', np.array([b'x' * 2**24], dtype=np.object_))])"
    write_python(tmp_path / "models", "large", CONFIG, large)
    flood = """
inputs = [("IN", "BYTES", (1,), -1, 5)]
for number in range(1_000_000, 1_000_100):
    send(40, (), number, (), False, False, call(name="large", inputs=inputs), payload=b"\\x01\\x00\\x00\\x00x")
time.sleep(600)
"""
    flags = ("--backend-config=python,shm-limit-byte-size=67108864",)
    with ConchProcess(tmp_path / "models", *flags, log=tmp_path / "log") as server, OtherClients(server):
        status, error = infer(server, "hostile", flood)
        assert status == 500
        assert "MiB of answers" in error
        server.until("/v2/models/hostile/ready")
        assert infer(server, "hostile", "found[0] = 'back'") == (200, "back")


def test_memory_and_descriptors_are_flat(server: ConchProcess) -> None:
    process = psutil.Process(server.process.pid)
    attack = (
        "fds = [os.memfd_create('x') for _ in range(100)]\n"
        "rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', fds))\n"
        "channel._connection.sendmsg([PREFIX.pack(2, 1 << 30) + b'[1'], [rights])\n"
        "raw(bytes(1 << 24)); os._exit(1)"
    )

    def attacked(times: int) -> None:
        for _ in range(times):
            assert infer(server, "hostile", attack)[0] == 500
            server.until("/v2/models/hostile/ready")
            assert infer(server, "hostile", "found[0] = 'back'") == (200, "back")

    attacked(6)
    time.sleep(1)
    descriptors, memory = process.num_fds(), process.memory_info().rss
    attacked(12)
    deadline = time.monotonic() + 60
    while process.num_fds() > descriptors + 1 or process.memory_info().rss >= memory + (32 << 20):
        assert time.monotonic() < deadline, (process.num_fds() - descriptors, process.memory_info().rss - memory)
        time.sleep(0.1)


PAGE = """
url = "http://127.0.0.1:PORT/metrics"
values = []
for number in range(3):
    family = pb_utils.MetricFamily(f"seen_{number}", "Created now", pb_utils.MetricFamily.HISTOGRAM)
    metric = family.Metric(labels={"a": "b"}, buckets=[1.0])
    for _ in range(3):
        metric.observe(0.5)
    page = urllib.request.urlopen(url, timeout=60).read().decode()
    values += [line.split()[-1] for line in page.splitlines() if line.startswith(f"seen_{number}_count")]
found[0] = ",".join(values)
"""


def test_a_model_finds_its_last_values_on_the_page(server: ConchProcess) -> None:
    """As in Triton, whose page has them at once, also those of a family that was created a moment ago."""
    for _ in range(5):
        code = PAGE.replace("PORT", str(server.ports["metrics"]))
        assert infer(server, "hostile", code) == (200, "3,3,3")


def test_thousands_of_families_leave_the_page_readable(server: ConchProcess) -> None:
    many = """
kept = []
try:
    for number in range(30_000):
        family = pb_utils.MetricFamily(f"many_{number}", "One of many", pb_utils.MetricFamily.GAUGE)
        kept.append((family, family.Metric()))
except pb_utils.TritonModelException as error:
    found[0] = str(error)
    channel.kept = kept
"""
    status, error = infer(server, "hostile", many)
    assert status == 200
    assert "has 2000 families already, which is the maximum" in error
    page = server.metrics()
    assert page.count("\nmany_") >= 1900
    assert infer(server, "hostile", "channel.kept = None") == (200, "")
    assert "\nmany_" not in server.metrics()


def test_output_without_end_delays_no_request(server: ConchProcess, tmp_path: Path) -> None:
    size = server.log.stat().st_size
    with OtherClients(server):
        assert infer(server, "hostile", "os.write(1, b'x\\n' * 6_000_000)") == (200, "")
        log = "for _ in range(20_000): pb_utils.Logger.log_info('y')"
        assert infer(server, "hostile", log) == (200, "")
    server.until_logged(r"dropped \d+ lines \(\d+ bytes\) of its output, which exceeds 2000 lines or 2 MiB per second")
    assert server.log.stat().st_size - size < 10 << 20


MALFORMED_BYTES = r"""
outputs = (("OUT", "BYTES", (1,), -1, 8),)
send(34, (), [(key, True, None, outputs, None)], 1, 2, (0, 0, 0), payload=b"\xff\xff\xff\x7f1234")
time.sleep(1)
os._exit(1)
"""


def test_elements_that_are_cut_are_the_error_of_their_request(tmp_path: Path) -> None:
    """Over JSON, and in the trace, which records other models further."""
    models = tmp_path / "models"
    write_python(models, "hostile", CONFIG, EXECUTE)
    write_python(models, "other", CONFIG, ECHO)
    trace = tmp_path / "trace"
    flags = [f"--trace-config=triton,file={trace}", "--trace-config=level=TENSORS", "--trace-config=rate=1"]
    with ConchProcess(models, *flags, log=tmp_path / "log") as conch:
        status, error = infer(conch, "hostile", MALFORMED_BYTES)
        assert (status, "cannot be encoded as JSON" in error) == (500, True), error
        for _ in range(3):
            assert infer(conch, "other", "hello") == (200, "hello")
    text = "".join(path.read_text() for path in tmp_path.glob("trace*"))
    assert text.count('"model_name":"other"') >= 3
    assert "Traceback" not in conch.text
