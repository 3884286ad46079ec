"""Messages that are expensive to decode delay the client that sends them, not others."""

import gzip
import http.client
import threading
from collections.abc import Callable, Iterator

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.support.models import write_identity
from tests.support.server_process import ConchProcess

# Strings of a request: seconds of a worker's time in a few kilobytes.
STRINGS = 2_000_000
BOMBS = 6


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    folder = tmp_path_factory.mktemp("fair")
    write_identity(folder / "models", "floats", "FP32", -1)
    write_identity(folder / "models", "texts", "STRING", -1)
    with ConchProcess(folder / "models", log=folder / "log") as server:
        yield server


def bomb() -> bytes:
    data = b",".join([b'""'] * STRINGS)
    return gzip.compress(b'{"inputs":[{"name":"INPUT0","datatype":"BYTES","shape":[1],"data":[%s]}]}' % data)


def floats(count: int) -> bytes:
    data = b",".join([b"1.5"] * count)
    return b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[%d],"data":[%s]}]}' % (count, data)


def post(server: ConchProcess, path: str, body: bytes, source: str, coding: str = "identity") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", server.ports["http"], timeout=120, source_address=(source, 0))
    try:
        connection.request("POST", path, body, {"Content-Encoding": coding})
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


class Flood:
    """Bombs of one client in flight."""

    def __init__(self, send: Callable[[], object]) -> None:
        self._send = send
        self.answered = 0
        self._threads = [threading.Thread(target=self._run) for _ in range(BOMBS)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        self._send()
        self.answered += 1

    def join(self) -> None:
        for thread in self._threads:
            thread.join()


@pytest.mark.parametrize("path", ["/v2/models/texts/infer", "/v1/completions"])
def test_a_small_message_passes_the_bombs_of_another_client(server: ConchProcess, path: str) -> None:
    if path.startswith("/v1"):  # whose bodies are not compressed
        body, coding = b'{"model":"none","prompt":[%s]}' % b",".join([b'""'] * STRINGS), "identity"
    else:
        body, coding = bomb(), "gzip"
    assert post(server, "/v2/models/floats/infer", floats(60_000), "127.0.0.2") == 200  # starts a worker
    flood = Flood(lambda: post(server, path, body, "127.0.0.1", coding))
    while flood.answered < 1:
        threading.Event().wait(0.01)
    for coding in ("identity", "gzip"):
        small = floats(60_000)
        sent = gzip.compress(small) if coding == "gzip" else small
        assert post(server, "/v2/models/floats/infer", sent, "127.0.0.2", coding) == 200
    assert flood.answered < BOMBS
    flood.join()


def test_a_grpc_message_passes_the_bombs_of_another_client(server: ConchProcess) -> None:
    large = service_pb2.ModelInferRequest(model_name="texts")
    text = large.inputs.add(name="INPUT0", datatype="BYTES", shape=[1])
    text.contents.bytes_contents.extend([b""] * (STRINGS))
    small = service_pb2.ModelInferRequest(model_name="floats")
    tensor = small.inputs.add(name="INPUT0", datatype="FP32", shape=[60_000])
    tensor.contents.fp32_contents.extend([1.5] * 60_000)
    limits = [("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(server.grpc, options=limits) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)

        def send() -> None:
            with pytest.raises(grpc.RpcError):
                stub.ModelInfer(large, compression=grpc.Compression.Gzip)

        flood = Flood(send)
        while flood.answered < 1:
            threading.Event().wait(0.01)
        assert len(stub.ModelInfer(small).raw_output_contents[0]) == 240_000
        assert flood.answered < BOMBS
        flood.join()
