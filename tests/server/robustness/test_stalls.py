"""No request blocks the event loop: a probe beside hostile requests is answered, and the server measures no stall.

The server's own measure counts processor time, so that a busy machine fails no test; the probe's bound is generous for
the same reason.
"""

import base64
import gzip
import http.client
import multiprocessing
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any
from uuid import uuid4

import grpc
import numpy as np
import pytest
import tritonclient.http as http_client
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import shared_memory

from tests.server.robustness import grpc_input as h2
from tests.support.models import tensor, write_ensemble, write_identity, write_python, write_scripted
from tests.support.server_process import ConchProcess, waited_for_cpu_s

MIB = 2**20
LARGE_BYTES = 60 * MIB
# Ten times what a server is to need at most. A machine with other work needs several times as long for the same.
MAX_PROBE_S = 3.0
LETTERS = """
texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
return pb_utils.InferenceResponse([pb_utils.Tensor("VECTOR", np.zeros((len(texts), 1024), np.float32))])
"""
FORWARD = """
inputs = request.inputs()
inner = pb_utils.InferenceRequest(model_name="python", inputs=inputs, requested_output_names=["OUTPUT0"])
return pb_utils.InferenceResponse(inner.exec().output_tensors())
"""
SLOW_TEMPLATE = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
HUGE_TEMPLATE = "{{ 'a' * 1000000000 }}"


def write_large_models(models: Path) -> None:
    """Write the models that are given tensors of nearly 64 MB."""
    config = f"input {tensor('INPUT0', 'FP32', -1)} output {tensor('OUTPUT0', 'FP32', -1)}"
    write_python(models, "forward", config, FORWARD)
    write_identity(models, "cached", extra="response_cache { enable: true }")
    write_identity(models, "traced")
    step = ("python", {"INPUT0": "IN"}, {"OUTPUT0": "MIDDLE"})
    last = ("python", {"INPUT0": "MIDDLE"}, {"OUTPUT0": "OUT"})
    write_ensemble(
        models, "chain", f"input {tensor('IN', 'FP32', -1)}", f"output {tensor('OUT', 'FP32', -1)}", step, last
    )


@dataclass(frozen=True)
class Http:
    """A request; `status` is what answers it, None where any may."""

    path: str
    body: Callable[[], bytes]
    headers: dict[str, str]
    status: int | None = None


def infer(model: str, datatype: str, count: int, data: str, *, output: str = "", more: str = "") -> bytes:
    entry = f'{{"name":"INPUT0","datatype":"{datatype}","shape":[{count}],"data":[{data}]}}'
    outputs = f',"outputs":[{{"name":"OUTPUT0"{output}}}]' if output else ""
    return f'{{"inputs":[{entry}]{outputs}{more}}}'.encode()


def binary(datatype: str, count: int, data: bytes, output: str) -> tuple[bytes, dict[str, str]]:
    head = (
        f'{{"inputs":[{{"name":"INPUT0","datatype":"{datatype}","shape":[{count}],'
        f'"parameters":{{"binary_data_size":{len(data)}}}}}],"outputs":[{{"name":"OUTPUT0"{output}}}]}}'
    ).encode()
    return head + data, {"Inference-Header-Content-Length": str(len(head))}


def as_binary(
    model: str, datatype: str, count: int, data: bytes, output: str, status: int | None = 200, **headers: str
) -> Http:
    body, more = binary(datatype, count, data, output)
    return Http(f"/v2/models/{model}/infer", lambda: body, headers | more, status)


def as_json(model: str, body: Callable[[], bytes], status: int | None = 200, **headers: str) -> Http:
    return Http(f"/v2/models/{model}/infer", body, headers, status)


def openai(path: str, status: int | None, model: str, fields: Callable[[], bytes]) -> Http:
    return Http(f"/v1/{path}", lambda: b'{"model":"%s",%s}' % (model.encode(), fields()), {}, status)


def many(item: bytes, count: int) -> bytes:
    return b"[" + b",".join([item] * count) + b"]"


def numbered(item: bytes, count: int) -> bytes:
    return b",".join([item % number for number in range(count)])


MESSAGE = b'{"role":"user","content":"a"}'
CLASSES = ',"parameters":{"classification":2147483647}'
BINARY = ',"parameters":{"binary_data":true}'
HTTP: dict[str, Callable[[], Http]] = {
    "classification of all elements": lambda: as_json(
        "bytes",
        lambda: gzip.compress(infer("bytes", "INT8", 150_000, ",".join(["1"] * 150_000), output=CLASSES)),
        **{"Content-Encoding": "gzip"},
    ),
    "classification of INT8": lambda: as_binary("bytes", "INT8", 100_000, bytes(100_000), CLASSES),
    "NaN": lambda: as_json("floats", lambda: infer("floats", "FP32", MIB // 4, ",".join(["NaN"] * (MIB // 4)))),
    "numbers": lambda: as_json("floats", lambda: infer("floats", "FP32", MIB, ",".join(["0"] * MIB))),
    "nested arrays": lambda: as_json("floats", lambda: infer("floats", "FP32", 0, ",".join(["[]"] * (MIB // 2)))),
    "deep arrays": lambda: as_json("floats", lambda: infer("floats", "FP32", 1, "[" * MIB), 400),
    "a wrong last element": lambda: as_json(
        "ints", lambda: infer("ints", "INT32", MIB, ",".join(["0"] * (MIB - 1) + ["0.5"])), 400
    ),
    "empty BYTES as JSON": lambda: as_binary("texts", "BYTES", 125_000, bytes(500_000), ""),
    "many BYTES elements": lambda: as_binary("texts", "BYTES", 4 * MIB, bytes(16 * MIB), BINARY, 400),
    "BYTES of another count": lambda: as_binary("texts", "BYTES", 1, bytes(16 * MIB), BINARY, 400),
    "invalid UTF-8": lambda: as_json(
        "texts", lambda: infer("texts", "BYTES", 100_000, ",".join(['"~~~"'] * 100_000)).replace(b"~", b"\xff")
    ),
    "invalid UTF-8 as JSON": lambda: as_binary("texts", "BYTES", 1, b"\0\0\x08\0" + b"\xff" * (MIB // 2), ""),
    "much invalid UTF-8 as JSON": lambda: as_binary(
        "texts", "BYTES", 1, struct.pack("<I", 16 * MIB) + b"\xff" * 16 * MIB, ""
    ),
    "a long id": lambda: as_json("ints", lambda: b'{"id":"%s","inputs":[]}' % (b"a" * 40 * MIB), 400),
    "a long name": lambda: as_json(
        "ints",
        lambda: b'{"inputs":[{"name":"%s","datatype":"INT32","shape":[1],"data":[1]}]}' % (b"a" * 40 * MIB),
        400,
    ),
    "a long configuration": lambda: Http(
        "/v2/repository/models/new/load", lambda: b'{"parameters":{"config":"%s"}}' % (b" " * 20 * MIB), {}, 400
    ),
    "many files of a load": lambda: Http(
        "/v2/repository/models/new/load",
        lambda: b'{"parameters":{"config":"{}",%s}}' % numbered(b'"file:1/%d":""', 70_000),
        {},
        400,
    ),
    "numbers as JSON": lambda: as_binary("floats", "FP32", MIB, bytes(4 * MIB), ""),
    "infinities as JSON": lambda: as_binary("floats", "FP32", MIB // 2, b"\0\0\x80\x7f" * (MIB // 2), ""),
    "compressed answer": lambda: as_binary(
        "floats", "FP32", 2 * MIB, bytes(8 * MIB), BINARY, **{"Accept-Encoding": "gzip"}
    ),
    "compressed spaces": lambda: as_json(
        "floats", lambda: gzip.compress(b" " * 20 * MIB, 1), 400, **{"Content-Encoding": "gzip"}
    ),
    "many inputs": lambda: as_json(
        "floats", lambda: b'{"inputs":%s}' % many(b'{"name":"A","datatype":"FP32","shape":[1],"data":[1]}', 50_000), 400
    ),
    "inputs of equal names": lambda: as_json(
        "floats",
        lambda: b'{"inputs":%s}' % many(b'{"name":"INPUT0","datatype":"BOOL","shape":[0],"data":[]}', 2000),
        400,
    ),
    "many outputs": lambda: as_json(
        "floats", lambda: b'{"inputs":[],"outputs":%s}' % many(b'{"name":"a"}', 200_000), 400
    ),
    "many parameters": lambda: as_json(
        "floats", lambda: b'{"inputs":[],"parameters":{%s}}' % numbered(b'"%d":1', 200_000), 400
    ),
    "unknown members": lambda: as_json("floats", lambda: b'{"a":%s,"inputs":[]}' % many(b"{}", MIB), 400),
    "generate": lambda: Http("/v2/models/texts/generate", lambda: b'{"INPUT0":%s}' % many(b'""', 100_000), {}, 200),
    "generate_stream": lambda: Http(
        "/v2/models/floats/generate_stream", lambda: b'{"INPUT0":%s}' % many(b"1", MIB), {}, 200
    ),
    "index": lambda: Http("/v2/repository/index", lambda: b'{"a":%s}' % many(b"[]", MIB), {}, 400),
    "trace": lambda: Http("/v2/trace/setting", lambda: b'{"a":%s}' % many(b"[]", MIB), {}, 400),
    "files of a load": lambda: Http(
        "/v2/repository/models/new/load",
        lambda: b'{"parameters":{"config":"{}","file:1/a":"%s"}}' % base64.b64encode(bytes(8 * MIB)),
        {},
    ),
    "token ids": lambda: openai("completions", 400, "llm", lambda: b'"prompt":%s' % many(b"1", MIB + 1)),
    "as many token ids as allowed": lambda: openai("completions", 400, "llm", lambda: b'"prompt":%s' % many(b"1", MIB)),
    "a long prompt": lambda: openai("completions", 400, "llm", lambda: b'"prompt":"%s"' % (b"\xc3\xa9" * 6 * MIB)),
    "messages": lambda: openai("chat/completions", None, "llm", lambda: b'"messages":%s' % many(MESSAGE, 50_000)),
    "a long message": lambda: openai(
        "chat/completions",
        400,
        "llm",
        lambda: b'"messages":[%s]' % MESSAGE.replace(b'"a"', b'"%s"' % (b"a" * 14 * MIB)),
    ),
    "a slow template": lambda: openai("chat/completions", 400, "slow", lambda: b'"messages":[%s]' % MESSAGE),
    "a template that takes memory": lambda: openai(
        "chat/completions", 400, "huge", lambda: b'"messages":[%s]' % MESSAGE
    ),
    "stop strings": lambda: openai(
        "completions", 400, "llm", lambda: b'"prompt":"a","stop":%s' % many(b'"a"', MIB // 2)
    ),
    "parameters for many prompts": lambda: openai(
        "completions", 400, "llm", lambda: b'"prompt":%s,"stop_token_ids":%s' % (many(b'"a"', 256), many(b"1", 60_000))
    ),
    "an echo for many choices": lambda: openai(
        "completions", 400, "llm", lambda: b'"n":60,"echo":true,"prompt":%s' % many(b'"%s"' % (b"a" * 4000), 256)
    ),
    "an answer of many choices": lambda: openai(
        "completions", 200, "llm", lambda: b'"n":16,"echo":true,"prompt":%s' % many(b'"%s"' % (b"a" * 1000), 256)
    ),
    "a long request id": lambda: Http(
        "/v1/completions", lambda: b'{"model":"llm","prompt":"a","n":128}', {"X-Request-Id": "x" * 60_000}, 400
    ),
    "biases": lambda: openai(
        "completions", 400, "llm", lambda: b'"prompt":"a","logit_bias":{%s}' % numbered(b'"%d":1', 100_000)
    ),
    "tools": lambda: openai(
        "chat/completions",
        400,
        "llm",
        lambda: b'"messages":[%s],"tools":%s' % (MESSAGE, many(b'{"type":"function","function":{"name":"f"}}', 50_000)),
    ),
    "a schema": lambda: openai(
        "completions", 400, "llm", lambda: b'"prompt":"a","guided_json":{"enum":%s}' % many(b"[]", MIB // 4)
    ),
    "embeddings": lambda: openai("embeddings", 200, "vectors", lambda: b'"input":%s' % many(b'"a"', 2048)),
    "embeddings of token ids": lambda: openai(
        "embeddings", 400, "vectors", lambda: b'"input":%s' % many(many(b"1", 600), 2000)
    ),
}


def _message(model: str = "floats", **fields: Any) -> Any:
    return service_pb2.ModelInferRequest(model_name=model, **fields)


def _typed(model: str, datatype: str, count: int, **contents: Any) -> Any:
    entry = service_pb2.ModelInferRequest.InferInputTensor(name="INPUT0", datatype=datatype, shape=[count])
    for name, values in contents.items():
        getattr(entry.contents, name).extend(values)
    return _message(model, inputs=[entry])


def _raw(model: str, datatype: str, count: int, data: bytes, classes: int = 0) -> Any:
    message = _message(model, raw_input_contents=[data])
    message.inputs.add(name="INPUT0", datatype=datatype, shape=[count])
    if classes:
        message.outputs.add(name="OUTPUT0").parameters["classification"].int64_param = classes
    return message


GRPC: dict[str, tuple[Callable[[], Any], bool]] = {
    "tiny inputs": (
        lambda: _message(inputs=[service_pb2.ModelInferRequest.InferInputTensor(name="a", datatype="BOOL")] * 100_000),
        False,
    ),
    "typed floats": (lambda: _typed("floats", "FP32", MIB, fp32_contents=[1.0] * MIB), True),
    "typed integers": (lambda: _typed("ints", "INT32", MIB, int_contents=[-1] * MIB), True),
    "typed texts": (lambda: _typed("texts", "BYTES", 100_000, bytes_contents=[b""] * 100_000), True),
    "raw contents": (lambda: _message(raw_input_contents=[b""] * MIB), False),
    "outputs": (
        lambda: _message(outputs=[service_pb2.ModelInferRequest.InferRequestedOutputTensor(name="a")] * 100_000),
        False,
    ),
    "dimensions": (lambda: _message(inputs=[{"name": "INPUT0", "datatype": "FP32", "shape": [1] * MIB}]), False),
    "classification": (lambda: _raw("bytes", "INT8", 100_000, bytes(100_000), 2**31 - 1), True),
    "classification of few": (lambda: _raw("bytes", "INT8", 4 * MIB, bytes(4 * MIB), 5), True),
}


def _probe(pid: int, port: int, stop: Event, longest: Any) -> None:
    """Ask for the server's health all the time; note the longest answer of each period in `longest`.

    The time in which the probe or the server's event loop had no processor does not count.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    while not stop.is_set():
        began, waited = time.monotonic(), waited_for_cpu_s(pid)
        connection.request("GET", "/v2/health/live")
        connection.getresponse().read()
        took = time.monotonic() - began
        if took > longest.value:
            longest.value = max(longest.value, took - (waited_for_cpu_s(pid) - waited))
        time.sleep(0.005)


class Watch:
    """What a hostile request does to others."""

    def __init__(self, conch: ConchProcess, longest: Any) -> None:
        self._conch = conch
        self._longest = longest
        self._before = self._figures()
        longest.value = 0.0

    def _figures(self) -> tuple[int, float]:
        """Return how often the event loop was blocked for more than half a second, and its lag."""
        text = self._conch.metrics()
        values = {
            name: float(value)
            for name, value in re.findall(r"^conch_event_loop_lag_seconds_(\S+) (\S+)$", text, re.MULTILINE)
        }
        return int(values["count"] - values['bucket{le="0.5"}']), values["sum"]

    def check(self) -> None:
        probed = self._longest.value
        stalls, lag = self._figures()
        print(f"probe {probed:.3f} s, stalls {stalls - self._before[0]}, lag {lag - self._before[1]:.3f} s")
        assert stalls == self._before[0], self._conch.text[-3000:]
        assert probed < MAX_PROBE_S


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    root = tmp_path_factory.mktemp("stalls")
    models = root / "models"
    for name, datatype in (("floats", "FP32"), ("ints", "INT32"), ("bytes", "INT8"), ("texts", "STRING")):
        write_identity(models, name, datatype, -1)
    write_python(
        models,
        "python",
        f"input {tensor('INPUT0', 'FP32', -1)} output {tensor('OUTPUT0', 'FP32', -1)}",
        """
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())])
        """,
    )
    write_python(
        models,
        "vectors",
        f"max_batch_size: 64 input {tensor('TEXT', 'STRING', 1)} output {tensor('VECTOR', 'FP32', 1024)}",
        LETTERS,
    )
    write_large_models(models)
    write_scripted(models, "llm", {"rules": []})
    write_scripted(models, "slow", {"rules": [], "chat_template": SLOW_TEMPLATE})
    write_scripted(models, "huge", {"rules": [], "chat_template": HUGE_TEMPLATE})
    flags = ["--model-control-mode=explicit", "--load-model=*", "--allow-client-shm=true"]
    trace = f"--trace-config=triton,file={root / 'trace.json'}"
    with ConchProcess(models, *flags, trace, "--cache-config=local,size=268435456", log=root / "conch.log") as conch:
        yield conch


@pytest.fixture(scope="module")
def longest(server: ConchProcess) -> Iterator[Any]:
    context = multiprocessing.get_context("spawn")
    stop, value = context.Event(), context.Value("d", 0.0)
    process = context.Process(target=_probe, args=(server.process.pid, server.ports["http"], stop, value))
    process.start()
    while not value.value:
        assert process.is_alive()
        time.sleep(0.01)
    yield value
    stop.set()
    process.join()
    assert process.exitcode == 0


@pytest.mark.parametrize("name", HTTP)
def test_an_http_request_blocks_no_other_client(server: ConchProcess, longest: Any, name: str) -> None:
    request = HTTP[name]()
    body = request.body()
    watch = Watch(server, longest)
    with closing(http.client.HTTPConnection(server.http, timeout=60)) as connection:
        began = time.monotonic()
        connection.request("POST", request.path, body, request.headers)
        response = connection.getresponse()
        answer = response.read()
    print(f"{name}: {len(body)} bytes, {time.monotonic() - began:.2f} s, {response.status} {answer[:150]!r}")
    watch.check()
    if request.status is not None:
        assert response.status == request.status, answer[:1000]


@pytest.mark.parametrize("streamed", [False, True], ids=["unary", "stream"])
@pytest.mark.parametrize("name", GRPC)
def test_a_grpc_message_blocks_no_other_client(server: ConchProcess, longest: Any, name: str, streamed: bool) -> None:
    make, works = GRPC[name]
    message = make()
    limits = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(server.grpc, options=limits) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        watch = Watch(server, longest)
        began = time.monotonic()
        if streamed:
            answers = list(stub.ModelStreamInfer(iter([message])))
            error = answers[0].error_message
        else:
            try:
                stub.ModelInfer(message)
                error = ""
            except grpc.RpcError as failure:
                error = failure.details()
    print(f"{name}: {message.ByteSize()} bytes, {time.monotonic() - began:.2f} s, {error[:150]!r}")
    watch.check()
    assert (error == "") == works, error[:1000]


@pytest.mark.parametrize("what", ["name", "name of 4 MiB", "config", "key", "file", "long config"])
def test_a_grpc_load_blocks_no_other_client(server: ConchProcess, longest: Any, what: str) -> None:
    """The log and the error repeat names."""
    name = {"name": "a" * LARGE_BYTES, "name of 4 MiB": "a" * 4 * MIB}.get(what, "new")
    message = service_pb2.RepositoryModelLoadRequest(model_name=name)
    if what == "config":
        message.parameters["config"].string_param = '{"%s":1}' % ("a" * (2 * MIB - 10))
    elif what == "long config":
        message.parameters["config"].string_param = " " * LARGE_BYTES
    elif what == "key":
        message.parameters["a" * LARGE_BYTES].string_param = ""
    elif what == "file":
        message.parameters["file:1/" + "a" * MIB].bytes_param = bytes(LARGE_BYTES)
    limits = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(server.grpc, options=limits) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        watch = Watch(server, longest)
        with pytest.raises(grpc.RpcError) as refused:
            stub.RepositoryModelLoad(message)
    print(f"{refused.value.code()} {refused.value.details()[:150]!r}")
    watch.check()


def _until_closed_or(connection: socket.socket, last: Callable[[bytes], bool]) -> None:
    """Read until what was read last says that it is the end."""
    tail = b""
    while data := connection.recv(MIB):
        tail = (tail + data)[-1000:]
        if last(tail):
            return


@pytest.mark.parametrize("message", [b"", b"\x0a\x04none"], ids=["empty", "unknown model"])
def test_tiny_messages_of_one_stream_block_no_other_client(server: ConchProcess, longest: Any, message: bytes) -> None:
    """A frame holds thousands of them, and what waits for room is served at once when there is."""
    frames = h2.frame(h2.DATA, 0, 1, (b"\0" + struct.pack(">I", len(message)) + message) * 1400) * 30
    watch = Watch(server, longest)
    with socket.create_connection(("127.0.0.1", server.ports["grpc"]), timeout=60) as connection:
        head = h2.frame(h2.HEADERS, h2.END_HEADERS, 1, h2.block("ModelStreamInfer"))
        sender = threading.Thread(
            target=connection.sendall, args=(h2.OPEN + head + frames + h2.frame(h2.DATA, h2.END_STREAM, 1),)
        )
        sender.start()
        _until_closed_or(connection, lambda tail: b"grpc-status" in tail)
        sender.join()
    watch.check()


def test_pipelined_requests_block_no_other_client(server: ConchProcess, longest: Any) -> None:
    """What was read together is served in slices, and answered in order."""
    request = b"POST /v2/repository/index HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
    last = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    watch = Watch(server, longest)
    with socket.create_connection(("127.0.0.1", server.ports["http"]), timeout=60) as connection:
        sender = threading.Thread(target=connection.sendall, args=(request * 1500 + last,))
        sender.start()
        answers = bytearray()
        while data := connection.recv(MIB):
            answers += data
        sender.join()
    watch.check()
    assert answers.count(b"HTTP/1.1 200 OK") == 1501
    assert b"Connection: close" in answers[-200:]


@pytest.fixture(scope="module")
def regions(server: ConchProcess) -> Iterator[tuple[str, str]]:
    """Two registered regions, for an input and an output."""
    with closing(http_client.InferenceServerClient(server.http)) as client, ExitStack() as stack:
        names = ("stalls0", "stalls1")
        for name in names:
            key = f"/{uuid4().hex}"
            handle = shared_memory.create_shared_memory_region(name, key, LARGE_BYTES)
            stack.callback(shared_memory.destroy_shared_memory_region, handle)
            shared_memory.set_shared_memory_region(handle, [np.ones(LARGE_BYTES // 4, np.float32)])
            client.register_system_shared_memory(name, key, LARGE_BYTES)
        yield names


def _send_large(server: ConchProcess, model: str, way: str, regions: tuple[str, str], size: int) -> int:
    """Send a tensor of `size` bytes and return how many bytes came back."""
    given, taken = ("IN", "OUT") if model == "chain" else ("INPUT0", "OUTPUT0")
    shape = [size // 4]
    if way == "grpc":
        message = _raw(model, "FP32", shape[0], bytes(size))
        message.inputs[0].name = given
        options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
        with grpc.insecure_channel(server.grpc, options=options) as channel:
            return len(service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(message).raw_output_contents[0])
    with closing(http_client.InferenceServerClient(server.http, network_timeout=60)) as client:
        tensors = [http_client.InferInput(given, shape, "FP32")]
        outputs = [http_client.InferRequestedOutput(taken, binary_data=True)]
        if way == "regions":
            tensors[0].set_shared_memory(regions[0], size)
            outputs[0].set_shared_memory(regions[1], size)
        else:
            tensors[0].set_data_from_numpy(np.ones(shape, np.float32))
        answer = client.infer(model, tensors, outputs=outputs)
        if way == "regions":
            return int(answer.get_output(taken)["shape"][0]) * 4
        return int(answer.as_numpy(taken).nbytes)


@pytest.mark.parametrize(
    ("model", "way"),
    [
        ("floats", "http"),
        ("floats", "regions"),
        ("python", "http"),
        ("python", "grpc"),
        ("python", "regions"),
        ("chain", "http"),
        ("chain", "regions"),
        ("forward", "regions"),
        ("cached", "grpc"),
        ("cached", "regions"),
        ("traced", "regions"),
    ],
)
def test_a_large_tensor_blocks_no_other_client(
    server: ConchProcess, longest: Any, regions: tuple[str, str], model: str, way: str
) -> None:
    if model == "traced":
        with closing(http_client.InferenceServerClient(server.http)) as client:
            client.update_trace_settings(model, {"trace_level": ["TIMESTAMPS", "TENSORS"], "trace_rate": "1"})
    size = MIB * 8 if model == "traced" else LARGE_BYTES  # a trace is text, which takes long to write
    watch = Watch(server, longest)
    began = time.monotonic()
    returned = _send_large(server, model, way, regions, size)
    print(f"{model} {way}: {time.monotonic() - began:.2f} s")
    if model == "traced":
        time.sleep(0.5)  # meanwhile a thread writes the trace
    watch.check()
    assert returned == size
