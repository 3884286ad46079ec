"""Clients of the gRPC port that break the rules of good behaviour, or of HTTP/2: the others do not notice."""

import contextlib
import socket
import ssl
import struct
from contextlib import ExitStack
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
import trustme
from tritonclient.grpc import service_pb2

from tests.server.robustness import grpc_input as h2
from tests.server.robustness.grpc_targets import read_frames
from tests.server.robustness.slow_clients import (
    MIB,
    connect,
    descriptors,
    endured,
    read_all,
    reset,
    send_what_it_takes,
    write_models,
)
from tests.support.server_process import ConchProcess

RESET = b"\0\0\0\x08"
ENHANCE_YOUR_CALM = 11


def http2(conch: ConchProcess, begin: bytes = h2.OPEN, **options: int) -> socket.socket:
    client = connect(conch.ports["grpc"], **options)
    client.sendall(begin)
    return client


def infer_message(size: int, model: str = "echo") -> bytes:
    message = service_pb2.ModelInferRequest(model_name=model, raw_input_contents=[bytes(4 * size)])
    message.inputs.add(name="INPUT0", datatype="FP32", shape=[size])
    return h2.message(message.SerializeToString())


def call(stream: int, content: bytes, method: str = "ModelInfer", *, end: bool = True) -> bytes:
    """Return the frames of a call."""
    pieces = [content[at : at + 16_000] for at in range(0, len(content), 16_000)]
    flags = [0] * (len(pieces) - 1) + [h2.END_STREAM if end else 0]
    body = b"".join(h2.frame(h2.DATA, flag, stream, piece) for flag, piece in zip(flags, pieces, strict=True))
    return h2.frame(h2.HEADERS, h2.END_HEADERS, stream, h2.block(method)) + body


def ask(conch: ConchProcess) -> None:
    """Ask as a client of gRPC's own; the bystander of `endured` asks over HTTP."""
    with triton.InferenceServerClient(conch.grpc) as client:
        given = triton.InferInput("INPUT0", [2], "FP32")
        given.set_data_from_numpy(np.array([1, 2], np.float32))
        assert client.infer("echo", [given]).as_numpy("OUTPUT0").tolist() == [1.0, 2.0]


def goaway_of(client: socket.socket) -> int | None:
    """Read to the end and return the code by which the server said goodbye."""
    answer = read_all(client)
    with contextlib.suppress(AssertionError):  # the last frame may have been cut off by a reset
        return read_frames(answer)[1]
    return None


# A thousand answers that the client does not let out.
WAITING = h2.settings((4, 0)) + b"".join(call(i, infer_message(1)) for i in range(20_001, 21_901, 2))
FLOODS = {
    "rapid reset": b"".join(
        h2.frame(h2.HEADERS, h2.END_HEADERS, i, h2.block("ModelInfer")) + h2.frame(h2.RESET, 0, i, RESET)
        for i in range(1, 20_001, 2)
    ),
    "rapid reset of whole requests": b"".join(
        call(i, infer_message(1)) + h2.frame(h2.RESET, 0, i, RESET) for i in range(1, 20_001, 2)
    ),
    "resets made by the server": b"".join(
        h2.frame(h2.HEADERS, h2.END_HEADERS, i, h2.block("ModelInfer")) + h2.frame(h2.WINDOW, 0, i, bytes(4))
        for i in range(1, 20_001, 2)
    ),
    "continuation": h2.frame(h2.HEADERS, 0, 1, h2.block("ModelInfer"))
    + h2.frame(h2.CONTINUATION, 0, 1, b"\0\1a\1b") * 200_000,
    "empty continuation": h2.frame(h2.HEADERS, 0, 1, b"") + h2.frame(h2.CONTINUATION, 0, 1) * 200_000,
    "settings": h2.settings() * 100_000,
    "settings with values": h2.settings((4, 100), (4, 2**30)) * 50_000,
    "settings that change much": WAITING + h2.settings(*((4, i % 2) for i in range(10_000))) * 20,
    "settings that change windows": WAITING + (h2.settings((4, 1)) + h2.settings((4, 0))) * 5_000,
    "ping": h2.frame(h2.PING, 0, 0, b"12345678") * 100_000,
    "ping answers": h2.frame(h2.PING, h2.ACK, 0, b"12345678") * 100_000,
    "priority": h2.frame(h2.PRIORITY, 0, 1, bytes(5)) * 100_000,
    "empty data": call(1, infer_message(1), end=False) + h2.frame(h2.DATA, 0, 1) * 100_000,
    "padding": call(1, infer_message(1), end=False) + h2.frame(h2.DATA, h2.PADDED, 1, b"\0") * 200_000,
    "unknown frames": h2.frame(77, 0, 0, b"?") * 100_000,
    "window updates": h2.frame(h2.WINDOW, 0, 0, b"\0\0\0\1") * 400_000,
    "window updates of a stream": call(1, infer_message(1), end=False)
    + h2.frame(h2.WINDOW, 0, 1, b"\0\0\0\1") * 400_000,
    "window updates that let one byte out each": WAITING + h2.frame(h2.WINDOW, 0, 20_001, b"\0\0\0\1") * 400_000,
    "headers": b"".join(h2.frame(h2.HEADERS, h2.END_HEADERS, i, h2.block("ModelInfer")) for i in range(1, 60_001, 2)),
    "headers of nothing": b"".join(
        h2.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, i, h2.block("Nothing")) for i in range(1, 60_001, 2)
    ),
    "headers without a message": b"".join(
        h2.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, i, h2.block("ModelInfer")) for i in range(1, 60_001, 2)
    ),
    "headers that change the table": b"".join(
        h2.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, i, b"\x20\x3f\xe1\x1f" + h2.block("ServerLive"))
        for i in range(1, 60_001, 2)
    ),
    "late headers": h2.frame(h2.HEADERS, h2.END_HEADERS, 1, h2.block("Nothing"))
    + h2.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, 1, h2.block("Nothing")) * 60_000,
    "bytes of a message": call(1, b"\0\x7f\xff\xff\xff", end=False) + h2.frame(h2.DATA, 0, 1, b"x") * 200_000,
    "padded bytes": call(1, b"\0\x7f\xff\xff\xff", end=False)
    + h2.frame(h2.DATA, h2.PADDED, 1, b"\x20x" + bytes(32)) * 100_000,
    "goaway": call(1, infer_message(1), end=False) + h2.frame(7, 0, 0, bytes(8)) * 100_000,
    "late data": call(1, infer_message(1)) + h2.frame(h2.DATA, 0, 1, b"x") * 100_000,
}

# A client may send as many small frames of data as the server could serve messages; slices bound what they cost.
_HARMLESS = {"padding", "bytes of a message", "padded bytes"}


@pytest.mark.parametrize("flood", FLOODS)
def test_floods(conch: ConchProcess, flood: str) -> None:
    with endured(conch, 64 * MIB) as others, ExitStack() as stack:
        clients = [stack.enter_context(http2(conch)) for _ in range(2)]
        for client in clients:
            send_what_it_takes(client, FLOODS[flood])
        others.served()
        ask(conch)
        if flood not in _HARMLESS:
            assert {goaway_of(client) for client in clients} <= {ENHANCE_YOUR_CALM, None}
            assert not any(map(still_open, clients))


def resets_over_new_connections(conch: ConchProcess, address: str, connections: int) -> int:
    """Connect again and again, each time with fewer resets than one connection may have; return the connections."""
    resets = b"".join(
        h2.frame(h2.HEADERS, h2.END_HEADERS, i, h2.block("ModelInfer")) + h2.frame(h2.RESET, 0, i, RESET)
        for i in range(1, 1800, 2)
    )
    for number in range(1, connections + 1):
        with socket.create_connection(("127.0.0.1", conch.ports["grpc"]), 60, (address, 0)) as client:
            client.sendall(h2.OPEN + resets)
            client.shutdown(socket.SHUT_WR)  # the server reads to the end, then closes
            if goaway_of(client) == ENHANCE_YOUR_CALM:
                return number
    raise AssertionError(f"no connection of {connections} was ended")


def test_rapid_resets_over_new_connections(conch: ConchProcess) -> None:
    assert resets_over_new_connections(conch, "127.0.0.7", 100) > 11  # 10,000 resets at once
    assert resets_over_new_connections(conch, "127.0.0.8", 100) > 11
    ask(conch)


def still_open(client: socket.socket) -> bool:
    try:
        client.sendall(h2.frame(h2.WINDOW, 0, 0, b"\0\0\0\1"))
        return bool(client.recv(1))
    except ConnectionError:
        return False


def test_messages_that_are_announced_and_not_sent(conch: ConchProcess) -> None:
    announced = b"\0" + struct.pack(">I", 2**31 - 1) + b"x"
    with endured(conch, 64 * MIB) as others, ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(http2(conch)).sendall(b"".join(call(i, announced, end=False) for i in range(1, 201, 2)))
        others.served()
        ask(conch)


def test_a_window_that_is_opened_by_one_byte_at_a_time(conch: ConchProcess) -> None:
    """A thousand answers wait, and each of many frames could let one byte out, or make the server look for it."""
    calls = b"".join(call(i, infer_message(1)) for i in range(1, 1_981, 2))
    with endured(conch, 64 * MIB) as others:
        for stream in (0, 1, 1_979):
            with http2(conch, h2.PREFACE + h2.settings((4, 0))) as client:
                client.sendall(calls)
                send_what_it_takes(client, h2.frame(h2.WINDOW, 0, stream, b"\0\0\0\1") * 200_000)
                others.served()
                ask(conch)


@pytest.mark.parametrize("window", [0, 2**31 - 1])
def test_readers_that_do_not_read(conch: ConchProcess, window: int) -> None:
    """Be it that they do not allow the server to send, be it that they do, and leave what is sent unread."""
    request = infer_message(MIB // 4)
    requests = b"".join(call(i, request) for i in range(1, 801, 2))
    with endured(conch, 300 * MIB) as others:
        begin = h2.PREFACE + h2.settings((4, window)) + h2.frame(h2.WINDOW, 0, 0, b"\x3f\0\0\0")
        with http2(conch, begin, buffers=65_536) as client:
            send_what_it_takes(client, requests)
            others.served()
            ask(conch)


def test_resets_in_every_phase(conch: ConchProcess) -> None:
    request = h2.OPEN + call(1, infer_message(1, "parallel")) + call(3, infer_message(1, "slow"), "ModelStreamInfer")
    large = h2.OPEN + call(1, infer_message(MIB))
    with endured(conch, 160 * MIB) as others:
        for _ in range(20):
            for sent in (b"", request[:10], request[:60], request[:200], request, large[:500_000], large):
                client = connect(conch.ports["grpc"])
                client.sendall(sent)
                reset(client)
        others.served()
        ask(conch)


def test_half_open_connections(conch: ConchProcess) -> None:
    """Those that say nothing, half a greeting, something else, or leave in the midst of it."""
    with endured(conch, 64 * MIB) as others, ExitStack() as stack:
        for begin in (b"", h2.PREFACE[:10], h2.PREFACE, h2.OPEN):
            for _ in range(50):
                stack.enter_context(http2(conch, begin))
        for begin in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", bytes(100)):
            with http2(conch, begin) as client:
                assert goaway_of(client) == 1
        with http2(conch) as client:
            client.sendall(call(1, infer_message(1, "slow")))
            client.shutdown(socket.SHUT_WR)
            read_all(client)
        others.served()
        ask(conch)


def test_handshakes_that_lead_to_nothing(tmp_path: Path) -> None:
    """Over TLS: silence, half a greeting, garbage, plain HTTP/2, and clients that leave in the midst of it."""
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    paths = {"root": authority.cert_pem, "cert": certificate.cert_chain_pems[0], "key": certificate.private_key_pem}
    for name, pem in paths.items():
        pem.write_to_path(tmp_path / name)
    write_models(tmp_path / "models")
    flags = ["--grpc-use-ssl=true", f"--grpc-server-cert={tmp_path / 'cert'}", f"--grpc-server-key={tmp_path / 'key'}"]
    hello = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context = ssl.create_default_context()
        context.wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost").do_handshake()
    greeting = hello.read()
    with (
        ConchProcess(tmp_path / "models", *flags, log=tmp_path / "conch.log") as conch,
        endured(conch, 64 * MIB) as others,
        ExitStack() as stack,
    ):
        for begin in (b"", greeting[:50], greeting, b"\x16\x03\x01\xff\xff", h2.OPEN, bytes(1000)):
            for _ in range(30):
                stack.enter_context(http2(conch, begin))
                reset(http2(conch, begin))
        others.served()
        root = str(tmp_path / "root")
        address = f"localhost:{conch.ports['grpc']}"
        with triton.InferenceServerClient(address, ssl=True, root_certificates=root) as client:
            assert client.is_server_live()


def test_thousands_of_connections(conch: ConchProcess) -> None:
    with descriptors(4_000), endured(conch, 160 * MIB) as others, ExitStack() as stack:
        for _ in range(3_000):
            stack.enter_context(http2(conch))
        others.served()
        ask(conch)


def test_a_stream_whose_responses_are_not_read(conch: ConchProcess) -> None:
    """The server takes no more requests of that stream; those of others continue."""
    requests = infer_message(250_000) * 150
    with endured(conch, 400 * MIB) as others, http2(conch, h2.PREFACE + h2.settings((4, 0))) as client:
        frames = call(1, requests, "ModelStreamInfer", end=False)
        send_what_it_takes(client, frames)
        others.served()
        ask(conch)


def test_every_status_names_the_client_where_it_is_at_fault(conch: ConchProcess) -> None:
    """Bytes that are not a message, and no bytes, for every method of the service."""
    with grpc.insecure_channel(conch.grpc) as channel:
        for method in service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods:
            if method.name == "ModelStreamInfer":
                continue
            invoke = channel.unary_unary(f"{h2.SERVICE}{method.name}")
            for content in (b"\xff" * 100, b"\x0a\xff\xff\xff\xff\x0f"):
                with pytest.raises(grpc.RpcError) as failed:
                    invoke(content, timeout=60)
                assert failed.value.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED)
