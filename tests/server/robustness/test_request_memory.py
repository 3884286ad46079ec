"""Request bodies: memory of uploads that are broken off, and the bound on what all connections hold together."""

import base64
import json
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from tests.server.robustness import grpc_input as h2
from tests.server.robustness.slow_clients import MIB, connect, read_all, until, write_models
from tests.support.server_process import ConchProcess

MAX_BYTES = 64 * MIB
UPLOAD = 48 * MIB
VALUE = {"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [-1]}
INFER = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nInference-Header-Content-Length: 99\r\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    root = tmp_path_factory.mktemp("memory")
    write_models(root / "models")
    flags = [f"--request-memory-limit={MAX_BYTES}", "--model-control-mode=explicit", "--load-model=*"]
    with ConchProcess(root / "models", *flags, log=root / "conch.log") as server:
        yield server


def by_length(server: ConchProcess, size: int = 48) -> socket.socket:
    client = connect(server.ports["http"])
    client.sendall(INFER + b"Content-Length: %d\r\n\r\n" % (60 * MIB) + bytes(size * MIB))
    return client


def by_chunks(server: ConchProcess, size: int = 48) -> socket.socket:
    client = connect(server.ports["http"])
    client.sendall(INFER + b"Transfer-Encoding: chunked\r\n\r\n" + (b"100000\r\n" + bytes(MIB) + b"\r\n") * size)
    return client


def by_grpc(server: ConchProcess, size: int = 48, method: str = "ModelInfer") -> socket.socket:
    client = connect(server.ports["grpc"])
    prefix = b"\0" + struct.pack(">I", 60 * MIB)
    client.sendall(
        h2.OPEN + h2.frame(h2.HEADERS, h2.END_HEADERS, 1, h2.block(method)) + h2.frame(h2.DATA, 0, 1, prefix)
    )
    piece = h2.frame(h2.DATA, 0, 1, bytes(16_384))
    for _ in range(size):
        client.sendall(piece * 64)
    return client


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_what_a_message_decompresses_to_is_charged(server: ConchProcess, algorithm: str) -> None:
    with grpc_client.InferenceServerClient(server.grpc) as client:

        def send(size: int) -> None:
            tensor = grpc_client.InferInput("INPUT0", [size // 4], "FP32")
            tensor.set_data_from_numpy(np.zeros(size // 4, np.float32))
            client.infer("echo", [tensor], compression_algorithm=algorithm)

        with pytest.raises(InferenceServerException, match="the memory for request bodies") as refused:
            send(MAX_BYTES + 4 * MIB)
        assert refused.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
        send(MIB * 32)


def by_grpc_stream(server: ConchProcess, size: int = 48) -> socket.socket:
    return by_grpc(server, size, "ModelStreamInfer")


UPLOADS = [by_length, by_chunks, by_grpc, by_grpc_stream]


def used(server: ConchProcess) -> int:
    return metric(server, "used_bytes")


def metric(server: ConchProcess, name: str) -> int:
    lines = server.metrics().splitlines()
    return int(float(next(line for line in lines if line.startswith(f"conch_request_memory_{name}")).split()[1]))


def infer(server: ConchProcess, size: int) -> None:
    """Ask over HTTP and over gRPC, with a tensor of `size` bytes."""
    for module, address in ((http_client, server.http), (grpc_client, server.grpc)):
        with module.InferenceServerClient(address) as client:
            given = module.InferInput("INPUT0", [size // 4], "FP32")
            given.set_data_from_numpy(np.zeros(size // 4, np.float32))
            assert client.infer("echo", [given]).as_numpy("OUTPUT0").nbytes == size


@pytest.mark.parametrize("upload", UPLOADS)
def test_an_upload_that_is_broken_off_leaves_no_memory_behind(
    server: ConchProcess, upload: Callable[..., socket.socket]
) -> None:
    process = psutil.Process(server.process.pid)
    for _ in range(3):
        client = upload(server)
        until(lambda: used(server) > UPLOAD - MIB, "the upload is not counted")
        client.close()
        until(lambda: used(server) < MIB, "the upload is still counted")
    # The C library keeps up to 64 MiB; three uploads are more than twice that.
    assert process.memory_info().rss < 250 * MIB
    infer(server, MIB)


@pytest.mark.parametrize("upload", UPLOADS)
def test_others_are_refused_while_there_is_no_memory_and_served_again(
    server: ConchProcess, upload: Callable[..., socket.socket]
) -> None:
    refused = metric(server, "refused_total")
    with upload(server) as held:
        until(lambda: used(server) > UPLOAD - MIB, "the upload is not counted")
        with connect(server.ports["http"]) as other:
            other.sendall(INFER + b"Content-Length: %d\r\n\r\n" % (24 * MIB))
            head = read_all(other)
        evicted = metric(server, "evicted_total")
        if evicted == 0:
            assert head.startswith(b"HTTP/1.1 503 ")
            assert b"\r\nRetry-After: 1\r\n" in head
            assert metric(server, "refused_total") > refused
        held.close()
    until(lambda: used(server) < MIB, "the upload is still counted")
    infer(server, 20 * MIB)


def test_uploads_without_progress_do_not_starve_others(server: ConchProcess) -> None:
    """Of every kind there is one that holds memory and sends nothing more; they have to go when others need it."""
    before = metric(server, "evicted_total")
    with ExitStack() as stack:
        held = [stack.enter_context(upload(server, 14)) for upload in UPLOADS]
        until(lambda: used(server) > 55 * MIB, "the uploads are not counted")

        def served() -> bool:
            with connect(server.ports["http"]) as client:
                client.sendall(INFER + b"Content-Length: %d\r\nExpect: 100-continue\r\n\r\n" % (62 * MIB))
                return client.recv(1000).startswith(b"HTTP/1.1 100 ")

        until(served, "others are not served")
        assert metric(server, "evicted_total") == before + len(UPLOADS)
        for client in held[:2]:
            assert read_all(client).startswith(b"HTTP/1.1 503 ")
        for client in held[2:]:
            client.sendall(h2.frame(h2.PING, 0, 0, b"12345678"))
            got = b""
            while b"12345678" not in got:
                got += client.recv(65_536)
            assert b"grpc-status" in got


def test_grpc_calls_beyond_the_memory_are_exhausted(server: ConchProcess) -> None:
    with grpc_client.InferenceServerClient(server.grpc) as client:
        given = grpc_client.InferInput("INPUT0", [20 * MIB], "FP32")
        given.set_data_from_numpy(np.zeros(20 * MIB, np.float32))
        with pytest.raises(InferenceServerException, match=r"RESOURCE_EXHAUSTED.*--request-memory-limit"):
            client.infer("echo", [given])
    infer(server, MIB)


@pytest.mark.parametrize(
    "line", ["POST /nothing", "POST /v2/health/live", "POST /v1/nothing", "GET /v2/models/echo/infer"]
)
@pytest.mark.parametrize("framing", ["Content-Length: 1000000000", "Transfer-Encoding: chunked"])
def test_a_wrong_path_or_method_is_answered_before_the_body(server: ConchProcess, line: str, framing: str) -> None:
    with connect(server.ports["http"]) as client:
        client.sendall(f"{line} HTTP/1.1\r\nHost: x\r\n{framing}\r\nExpect: 100-continue\r\n\r\n".encode())
        answer = read_all(client)
    assert answer[9:12] in (b"404", b"405")
    assert b"\r\nConnection: close\r\n" in answer
    assert b"100 Continue" not in answer


def test_a_missing_key_is_answered_before_the_body(tmp_path: Path) -> None:
    write_models(tmp_path / "models")
    flags = ["--http-restricted-api=model-repository:key=sesame", "--openai-api-key=sesame"]
    with ConchProcess(tmp_path / "models", *flags, log=tmp_path / "conch.log") as conch, ExitStack() as stack:
        for path, status in (("/v2/repository/models/x/load", b"403"), ("/v2/models/echo/infer", b"401")):
            client = stack.enter_context(connect(conch.ports["http"]))
            client.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n".encode())
            assert read_all(client)[9:12] == status


def test_unread_answers_are_counted(server: ConchProcess) -> None:
    """An answer of the identity model is its request: it is held, and counted, until the client has read it."""
    message = service_pb2.ModelInferRequest(model_name="echo", raw_input_contents=[bytes(20 * MIB)])
    message.inputs.add(name="INPUT0", datatype="FP32", shape=[5 * MIB])
    data = h2.message(message.SerializeToString())
    with connect(server.ports["grpc"]) as client:
        client.sendall(h2.OPEN + h2.frame(h2.HEADERS, h2.END_HEADERS, 1, h2.block("ModelInfer")))
        pieces = [data[at : at + 16_000] for at in range(0, len(data), 16_000)]
        client.sendall(
            b"".join(h2.frame(h2.DATA, 0, 1, piece) for piece in pieces) + h2.frame(h2.DATA, h2.END_STREAM, 1)
        )
        until(lambda: used(server) >= 20 * MIB, "the request is not counted")
        infer(server, MIB)
        assert used(server) >= 20 * MIB
    until(lambda: used(server) < MIB, "the request is still counted")


HTTP_REFUSED = {
    "malformed JSON": ("/v2/models/echo/infer", b'{"a":' * (4 * MIB)),
    "a wrong element": ("/v2/models/echo/infer", b'{"inputs":[{"name":"INPUT0","data":[' + b" " * 20 * MIB + b"{}]}]}"),
    "generate": ("/v2/models/echo/generate", b'{"INPUT0":' + b"[" * 20 * MIB),
    "a completion": ("/v1/completions", b'{"model":"echo","prompt":"' + b"a" * 20 * MIB),
    "a chat": ("/v1/chat/completions", b'{"model":"echo","messages":[' + b"[" * 20 * MIB),
    "embeddings": ("/v1/embeddings", b'{"model":"echo","input":[' + b"[" * 20 * MIB),
    "a load": ("/v2/repository/models/echo/load", b'{"parameters":{"config":' + b"[" * 20 * MIB),
}


@pytest.mark.parametrize("name", HTTP_REFUSED)
def test_a_refused_body_leaves_no_memory_behind(server: ConchProcess, name: str) -> None:
    """The budget holds three of them: a fourth is refused with 503 if those before it are not freed."""
    path, body = HTTP_REFUSED[name]
    for _ in range(5):
        connection = HTTPConnection(server.http, timeout=60)
        with closing(connection):
            connection.request("POST", path, body)
            response = connection.getresponse()
            response.read()
            assert response.status in (400, 404, 500), response.status
            until(lambda: used(server) < MIB, "the body is still counted while the connection is open")


@pytest.mark.parametrize("streamed", [False, True], ids=["unary", "stream"])
@pytest.mark.parametrize("kind", ["too many outputs", "contents for nothing"])
def test_a_refused_message_leaves_no_memory_behind(server: ConchProcess, kind: str, streamed: bool) -> None:
    message = service_pb2.ModelInferRequest(model_name="echo", id="a" * 10 * MIB)
    entry = message.inputs.add(name="INPUT0", datatype="FP32", shape=[2 if kind == "contents for nothing" else 1])
    entry.contents.fp32_contents.append(1)
    if kind == "too many outputs":
        for _ in range(3000):
            message.outputs.add(name="OUTPUT0")
    limits = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(server.grpc, options=limits) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for _ in range(8):
            if streamed:
                assert next(iter(stub.ModelStreamInfer(iter([message])))).error_message
            else:
                with pytest.raises(grpc.RpcError) as raised:
                    stub.ModelInfer(message)
                assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    until(lambda: used(server) < MIB, "the message is still counted")


FAILED_LOADS = {
    "no backend": {},
    "an unknown backend": {"backend": "nothing"},
    "an invalid configuration": {"backend": "identity", "max_batch_size": -5},
    "a missing file": {"backend": "onnxruntime"},
    "a damaged file": {"backend": "onnxruntime", "default_model_filename": "file"},
    "a failing model": {"backend": "python"},
    "an ensemble of nothing": {
        "platform": "ensemble",
        "ensemble_scheduling": {"step": [{"model_name": "nothing", "model_version": -1}]},
    },
}


@pytest.mark.parametrize("name", FAILED_LOADS)
def test_a_failed_load_leaves_no_memory_behind(server: ConchProcess, name: str) -> None:
    config, file = json.dumps(FAILED_LOADS[name]), bytes(8 * MIB)
    for _ in range(3):
        for module, address in ((http_client, server.http), (grpc_client, server.grpc)):
            files = {"file:1/file": file, "file:1/model.py": b"raise ValueError"}
            with module.InferenceServerClient(address) as client, pytest.raises(InferenceServerException, match="fail"):
                client.load_model("uploaded", config=config, files=files)
        until(lambda: used(server) < MIB, "the files are still counted")


def test_files_of_a_loaded_model_are_not_kept(server: ConchProcess) -> None:
    config = json.dumps({"backend": "identity", "input": [VALUE], "output": [VALUE | {"name": "OUTPUT0"}]})
    for _ in range(3):
        with http_client.InferenceServerClient(server.http) as client:
            client.load_model("uploaded", config=config, files={"file:1/file": bytes(12 * MIB)})
        until(lambda: used(server) < MIB, "the files are still counted")


def test_a_load_whose_client_leaves_leaves_no_memory_behind(server: ConchProcess) -> None:
    data = base64.b64encode(bytes(8 * MIB))
    body = b'{"parameters":{"config":"{}","file:1/file":"%s"}}' % data
    head = b"POST /v2/repository/models/uploaded/load HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    for _ in range(3):
        failures = server.text.count("failed to load 'uploaded'")
        with connect(server.ports["http"]) as client:
            client.sendall(head + body)
        until(lambda before=failures: server.text.count("failed to load 'uploaded'") > before, "it was not loaded")
        until(lambda: used(server) < MIB, "the files are still counted")
