"""Serving leaves nothing for the garbage collector: a collection stops the event loop, the longer the more it frees."""

import asyncio
import gc
import json
import socket
import ssl
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
import trustme

from conch.server.options.server_options import ServerOptions
from conch.server.server import Server
from tests.support.models import write_identity

REQUESTS = 20
SETTLE_S = 0.5  # for connections to be closed
VALUES = np.ones((1, 4), np.float32)
BODY = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}).encode()


@pytest.fixture
def garbage() -> Iterator[Callable[[], Counter[str]]]:
    """Return what counts this program's objects that only the garbage collector frees, by their types."""
    thresholds, debug = gc.get_threshold(), gc.get_debug()
    gc.collect()
    gc.disable()

    def count() -> Counter[str]:
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        types = Counter(f"{type(item).__module__}.{type(item).__qualname__}" for item in gc.garbage)
        gc.garbage.clear()
        gc.set_debug(debug)
        gc.collect()
        return Counter({name: number for name, number in types.items() if name.startswith("conch.")})

    yield count
    gc.set_debug(debug)
    gc.set_threshold(*thresholds)
    gc.unfreeze()
    gc.enable()
    gc.collect()


def given(client: Any) -> Any:
    """Return the input for one of Triton's clients."""
    tensor = client.InferInput("INPUT0", VALUES.shape, "FP32")
    tensor.set_data_from_numpy(VALUES)
    return tensor


def infer_over_http(port: int, _: int) -> None:
    with tritonclient.http.InferenceServerClient(f"127.0.0.1:{port}") as client:
        client.infer("echo", [given(tritonclient.http)])


def infer_over_new_connections(port: int, _: int) -> None:
    urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/models/echo/infer", BODY).close()


def make_mistakes(port: int, _: int) -> None:
    for model, body in (("echo", b"{"), ("missing", BODY), ("echo", b'{"inputs": []}')):
        with suppress(urllib.error.HTTPError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/models/{model}/infer", body).close()


def hang_up(port: int, _: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as client:
        head = f"POST /v2/models/echo/infer HTTP/1.1\r\nHost: test\r\nContent-Length: {len(BODY)}\r\n\r\n"
        client.sendall(head.encode() + BODY[:-1])


def infer_over_grpc(_: int, port: int) -> None:
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{port}") as client:
        client.infer("echo", [given(tritonclient.grpc)])
        with suppress(tritonclient.utils.InferenceServerException):
            client.infer("missing", [given(tritonclient.grpc)])


def infer_over_streams(_: int, port: int) -> None:
    answers: Queue[object] = Queue()
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{port}") as client:
        client.start_stream(lambda result, error: answers.put(error or result))
        client.async_stream_infer("echo", [given(tritonclient.grpc)])
        answers.get(timeout=30)
        client.stop_stream()


@asynccontextmanager
async def serving(folder: Path, **options: Any) -> AsyncIterator[Server]:
    write_identity(folder / "models", "echo", "FP32", 4, batch=8)
    addresses: Any = {"http_address": "127.0.0.1", "grpc_address": "127.0.0.1", "http_port": 0, "grpc_port": 0}
    models = (str(folder / "models"),)
    async with Server(
        ServerOptions(model_repository=models, allow_metrics=False, **addresses, **options)
    ).running() as server:
        yield server


async def left_by(ask: Callable[[], None], garbage: Callable[[], Counter[str]]) -> dict[str, int]:
    """Return what is left of many calls of `ask`, by types, but for what is left once."""

    def ask_often() -> None:
        for _ in range(REQUESTS):
            ask()

    await asyncio.to_thread(ask_often)
    await asyncio.sleep(SETTLE_S)
    gc.disable()  # which the server has enabled
    garbage()
    await asyncio.to_thread(ask_often)
    await asyncio.sleep(SETTLE_S)
    return {name: number for name, number in garbage().items() if number >= REQUESTS}


@pytest.mark.parametrize(
    "ask",
    [infer_over_http, infer_over_new_connections, make_mistakes, hang_up, infer_over_grpc, infer_over_streams],
)
async def test_requests_leave_nothing_to_the_garbage_collector(
    ask: Callable[[int, int], None], tmp_path: Path, garbage: Callable[[], Counter[str]]
) -> None:
    async with serving(tmp_path) as server:
        left = await left_by(lambda: ask(server.ports["http"], server.ports["grpc"]), garbage)
    assert left == {}


async def test_connections_over_tls_leave_nothing(tmp_path: Path, garbage: Callable[[], Counter[str]]) -> None:
    authority, root, certificate, key = trustme.CA(), *(tmp_path / name for name in ("root", "certificate", "key"))
    issued = authority.issue_cert("localhost")
    authority.cert_pem.write_to_path(str(root))
    issued.cert_chain_pems[0].write_to_path(str(certificate))
    issued.private_key_pem.write_to_path(str(key))
    context = ssl.create_default_context(cafile=str(root))
    files = {"server_cert": str(certificate), "server_key": str(key)}
    flags = {f"{port}_{name}": file for port in ("http", "grpc") for name, file in files.items()}
    async with serving(tmp_path, http_use_ssl=True, grpc_use_ssl=True, **flags) as server:

        def ask() -> None:
            url = f"https://localhost:{server.ports['http']}/v2/models/echo/infer"
            urllib.request.urlopen(url, BODY, context=context).close()
            with tritonclient.grpc.InferenceServerClient(
                f"localhost:{server.ports['grpc']}", ssl=True, root_certificates=str(root)
            ) as client:
                client.infer("echo", [given(tritonclient.grpc)])

        left = await left_by(ask, garbage)
    assert left == {}
