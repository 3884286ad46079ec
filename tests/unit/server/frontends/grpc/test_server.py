"""The frontend as a server: addresses, TLS, compression, access, limits, the end."""

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
import trustme
from tritonclient.grpc import service_pb2_grpc
from tritonclient.utils import InferenceServerException

from conch.base.errors import ConfigError
from conch.domain.tensor import Tensor
from conch.server.frontends.grpc.server import http2_limits
from conch.server.options.server_options import ServerOptions
from tests.unit.server.frontends.grpc.test_v2_grpc import refusal
from tests.unit.server.frontends.grpc.test_v2_grpc_stream import request

ZEROS = np.zeros((1, 16), np.float32)


def zeros() -> list[triton.InferInput]:
    return [triton.InferInput("INPUT0", [1, 16], "FP32").set_data_from_numpy(ZEROS)]


# ---- addresses


async def test_a_taken_port_is_an_error_that_says_so(serve, frontend):
    with pytest.raises(
        OSError, match=f"gRPC cannot listen on 127.0.0.1:{frontend.port}: Address already in use"
    ) as raised:
        await serve(grpc_port=frontend.port)
    assert raised.value.errno == errno.EADDRINUSE


async def test_an_address_of_another_machine_is_an_error_that_says_so(serve):
    with pytest.raises(OSError, match=r"gRPC cannot listen on 192\.0\.2\.1:0: Cannot assign requested address"):
        await serve(grpc_address="192.0.2.1")


async def test_two_servers_share_a_port_if_both_want_to(serve):
    first = await serve(reuse_grpc_port=True)
    second = await serve(reuse_grpc_port=True, grpc_port=first.port)
    assert second.port == first.port


async def test_ipv6(serve):
    frontend = await serve(grpc_address="::1")
    async with triton_aio.InferenceServerClient(f"[::1]:{frontend.port}") as client:
        assert await client.is_server_live()


# ---- TLS


@pytest.fixture
def certificates(tmp_path) -> dict[str, str]:
    """PEM files: a server's and a client's certificates, and those of a stranger's authority."""
    authority, stranger = trustme.CA(), trustme.CA()
    server, client = authority.issue_cert("localhost"), authority.issue_cert("client@example.org")
    foreign = stranger.issue_cert("client@example.org")
    parts = {
        "root": authority.cert_pem,
        "server_cert": server.cert_chain_pems[0],
        "server_key": server.private_key_pem,
        "client_cert": client.cert_chain_pems[0],
        "client_key": client.private_key_pem,
        "foreign_cert": foreign.cert_chain_pems[0],
        "foreign_key": foreign.private_key_pem,
    }
    for name, pem in parts.items():
        pem.write_to_path(tmp_path / name)
    return {name: str(tmp_path / name) for name in parts}


def tls_client(port: int, certificates: dict[str, str], who: str = "") -> triton_aio.InferenceServerClient:
    own = {"private_key": certificates[f"{who}_key"], "certificate_chain": certificates[f"{who}_cert"]} if who else {}
    return triton_aio.InferenceServerClient(
        f"localhost:{port}", ssl=True, root_certificates=certificates["root"], **own
    )


async def test_tls(serve, certificates):
    frontend = await serve(
        grpc_use_ssl=True,
        grpc_server_cert=certificates["server_cert"],
        grpc_server_key=certificates["server_key"],
    )
    async with tls_client(frontend.port, certificates) as client:
        assert (await client.infer("echo", zeros())).as_numpy("OUT_INPUT0") is not None
    async with triton_aio.InferenceServerClient(f"localhost:{frontend.port}") as plain:
        with pytest.raises(InferenceServerException, match="UNAVAILABLE"):
            await plain.is_server_live()


async def test_mutual_tls(serve, certificates):
    frontend = await serve(
        grpc_use_ssl_mutual=True,
        grpc_server_cert=certificates["server_cert"],
        grpc_server_key=certificates["server_key"],
        grpc_root_cert=certificates["root"],
    )
    async with tls_client(frontend.port, certificates, "client") as client:
        assert await client.is_server_live()
    for who in ("", "foreign"):
        async with tls_client(frontend.port, certificates, who) as client:
            with pytest.raises(InferenceServerException, match="UNAVAILABLE"):
                await client.is_server_live()


async def test_a_certificate_that_cannot_be_read_is_an_error(serve, certificates):
    with pytest.raises(ConfigError, match=r"--grpc-server-cert.*/nowhere.*: No such file or directory"):
        await serve(grpc_use_ssl=True, grpc_server_cert="/nowhere", grpc_server_key=certificates["server_key"])


async def test_a_certificate_that_is_none_is_an_error(serve, certificates):
    with pytest.raises(ConfigError, match="--grpc-server-cert"):
        await serve(
            grpc_use_ssl=True, grpc_server_cert=certificates["server_key"], grpc_server_key=certificates["server_key"]
        )


async def test_a_key_of_another_certificate_is_an_error(serve, certificates):
    with pytest.raises(ConfigError, match=r"--grpc-server-key.*KEY_VALUES_MISMATCH"):
        await serve(
            grpc_use_ssl=True, grpc_server_cert=certificates["server_cert"], grpc_server_key=certificates["client_key"]
        )


# ---- compression


class Counter:
    """A way to a server that counts its connections and the bytes that the server sends."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.connections = 0
        self.received = 0

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.target)
        await asyncio.gather(self._carry(reader, up_writer, 0), self._carry(up_reader, writer, 1))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, weight: int) -> None:
        while data := await reader.read(65536):
            self.received += weight * len(data)
            writer.write(data)
        writer.close()


@asynccontextmanager
async def counted(port: int) -> AsyncIterator[Counter]:
    counter = Counter(port)
    async with await asyncio.start_server(counter._connect, "127.0.0.1", 0) as proxy:
        counter.port = proxy.sockets[0].getsockname()[1]
        yield counter


@pytest.mark.parametrize(("level", "small"), [("none", False), ("low", True), ("medium", True), ("high", True)])
async def test_responses_are_compressed_as_asked(serve, inference, level, small):
    blank = Tensor("OUT", "UINT8", (1_000_000,), bytes(1_000_000))
    inference.add("blank", lambda pending: pending.answer(blank))
    frontend = await serve(grpc_infer_response_compression_level=level)

    async def requests():
        yield {"model_name": "blank", "inputs": zeros()}

    async with (
        counted(frontend.port) as way,
        triton_aio.InferenceServerClient(f"127.0.0.1:{way.port}") as client,
    ):
        result = await client.infer("blank", zeros())
        assert result.as_numpy("OUT").nbytes == 1_000_000
        assert (way.received < 50_000) is small
        way.received = 0
        async for streamed, _ in client.stream_infer(requests()):
            assert streamed.as_numpy("OUT").nbytes == 1_000_000
        assert (way.received < 50_000) is small


# ---- access


async def test_headers_that_match_become_parameters(serve, inference):
    frontend = await serve(grpc_header_forward_pattern="x-.*|tenant")
    async with triton_aio.InferenceServerClient(f"127.0.0.1:{frontend.port}") as client:
        headers = {"x-user": "ada", "my-tenant": "t1", "other": "no"}
        await client.infer("echo", zeros(), headers=headers, parameters={"own": 1})
    assert inference.admitted[0].request.parameters == {"own": 1, "x-user": "ada", "my-tenant": "t1"}


async def test_credentials_are_never_forwarded(serve, inference):
    frontend = await serve(
        grpc_header_forward_pattern=".*",
        grpc_restricted_protocol=("inference:k=sesame",),
        http_restricted_api=("trace:Admin-Key=sesame",),
    )
    async with triton_aio.InferenceServerClient(f"127.0.0.1:{frontend.port}") as client:
        secret = {"authorization": "Bearer sesame", "triton-grpc-protocol-k": "sesame", "admin-key": "sesame"}
        await client.infer("echo", zeros(), headers={**secret, "x-user": "ada"})
    parameters = inference.admitted[0].request.parameters
    assert parameters["x-user"] == "ada"
    assert not any("sesame" in str(value) for value in parameters.values())


async def test_headers_are_not_forwarded_unasked(client, inference):
    await client.infer("echo", zeros(), headers={"x-user": "ada"})
    assert inference.admitted[0].request.parameters == {}


async def test_a_header_of_a_reserved_name_is_refused(serve):
    frontend = await serve(grpc_header_forward_pattern=".*")
    async with triton_aio.InferenceServerClient(f"127.0.0.1:{frontend.port}") as client:
        status, text = await refusal(client.infer("echo", zeros(), headers={"triton_x": "1"}))
    assert status == "INVALID_ARGUMENT"
    assert "'triton_x'" in text


async def test_a_pattern_that_is_none_is_an_error(serve):
    with pytest.raises(ConfigError, match=r"--grpc-header-forward-pattern: '\('"):
        await serve(grpc_header_forward_pattern="(")


async def test_restricted_protocols(serve, inference):
    frontend = await serve(grpc_restricted_protocol=("inference,model-repository:infer-key=sesame", "health:h=1"))
    secret = {"triton-grpc-protocol-infer-key": "sesame"}
    async with triton_aio.InferenceServerClient(f"127.0.0.1:{frontend.port}") as client:
        expected = ("UNAVAILABLE", "This protocol is restricted, expecting header 'triton-grpc-protocol-infer-key'")
        assert await refusal(client.infer("echo", zeros())) == expected
        assert (
            await refusal(client.infer("echo", zeros(), headers={**secret, **dict.fromkeys(secret, "x")})) == expected
        )
        assert await refusal(client.load_model("echo")) == expected
        assert await refusal(client.is_server_live()) == (expected[0], expected[1].replace("infer-key", "h"))
        assert (await client.get_server_metadata()).name
        await client.infer("echo", zeros(), headers=secret)
        await client.load_model("echo", headers=secret)
        assert await client.is_server_live(headers={"triton-grpc-protocol-h": "1"})
    assert len(inference.admitted) == 1


async def test_a_restricted_stream_admits_nothing(serve, inference):
    frontend = await serve(grpc_restricted_protocol=("inference:k=v",))

    def ask() -> grpc.RpcError:
        with grpc.insecure_channel(f"127.0.0.1:{frontend.port}") as channel:
            answers = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(iter(20 * [request("echo")]))
            with pytest.raises(grpc.RpcError) as caught:
                next(answers)
            return caught.value

    error = await asyncio.to_thread(ask)
    assert (error.code(), "restricted" in error.details()) == (grpc.StatusCode.UNAVAILABLE, True)
    assert inference.admitted == []


@pytest.mark.parametrize("text", ["inference", "inference:k", "inference:=v", ":k=v", "nope:k=v"])
async def test_restrictions_that_are_none_are_errors(serve, text):
    with pytest.raises(ConfigError, match="--grpc-restricted-protocol"):
        await serve(grpc_restricted_protocol=(text,))


async def test_a_category_is_restricted_once(serve):
    with pytest.raises(
        ConfigError, match="restricted protocol 'health' can not be specified in multiple config groups"
    ):
        await serve(grpc_restricted_protocol=("health:k=v", "metadata,health:k=w"))


# ---- limits and ages


async def test_messages_beyond_the_usual_four_megabytes(client):
    large = np.zeros(3_000_000, np.float32)
    tensor = triton.InferInput("INPUT0", large.shape, "FP32").set_data_from_numpy(large)
    assert (await client.infer("echo", [tensor])).as_numpy("OUT_INPUT0").size == large.size


def test_flags_are_limits_of_a_connection():
    limits = http2_limits(
        ServerOptions(
            grpc_keepalive_time=1000,
            grpc_keepalive_timeout=2000,
            grpc_keepalive_permit_without_calls=True,
            grpc_http2_max_pings_without_data=3,
            grpc_http2_min_recv_ping_interval_without_data=4000,
            grpc_http2_max_ping_strikes=5,
            grpc_max_connection_age=6000,
            grpc_max_connection_age_grace=7000,
        )
    )
    assert (limits.keepalive_s, limits.keepalive_timeout_s, limits.keepalive_idle) == (1, 2, True)
    assert (limits.pings_without_data, limits.ping_interval_s, limits.ping_strikes) == (3, 4, 5)
    assert (limits.age_s, limits.age_grace_s) == (6, 7)


def test_connections_do_not_age_by_default():
    assert http2_limits(ServerOptions()).age_s == 0


async def test_an_aged_connection_is_renewed_unnoticed(serve):
    frontend = await serve(grpc_max_connection_age=50, grpc_max_connection_age_grace=60000)
    async with (
        counted(frontend.port) as way,
        triton_aio.InferenceServerClient(f"127.0.0.1:{way.port}") as client,
        asyncio.timeout(60),
    ):
        while way.connections < 3:
            assert await client.is_server_live()


# ---- the end


async def test_a_stopping_server_answers_what_it_has_and_takes_no_more(frontend, inference):
    async with triton_aio.InferenceServerClient(f"127.0.0.1:{frontend.port}") as client:
        asked = asyncio.create_task(client.infer("held", zeros()))
        (pending,) = await inference.wait_for(1)
        stopped = asyncio.create_task(frontend.stop(20))
        async with triton_aio.InferenceServerClient(f"127.0.0.1:{frontend.port}") as late:
            # Which of the two depends on whether grpcio took the connection before it closed the port.
            with pytest.raises(InferenceServerException, match=r"UNAVAILABLE|CANCELLED"):
                await late.is_server_live()
        assert not stopped.done()
        pending.answer(Tensor("OUT", "INT8", (1,), b"\7"))
        assert (await asked).as_numpy("OUT").tolist() == [7]
        async with asyncio.timeout(60):
            await stopped


async def test_after_the_grace_period_requests_are_cancelled(frontend, inference):
    async with triton_aio.InferenceServerClient(f"127.0.0.1:{frontend.port}") as client:
        asked = asyncio.create_task(client.infer("held", zeros()))
        (pending,) = await inference.wait_for(1)
        await frontend.stop(0.1)
        async with asyncio.timeout(60):
            await pending.cancelled.wait()
        assert (await refusal(asked))[0] in ("UNAVAILABLE", "CANCELLED")


async def test_stopping_twice_or_before_the_start_is_harmless(serve, frontend):
    await frontend.stop(0)
    await frontend.stop(0)
