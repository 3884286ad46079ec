import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio

from conch.server.frontends.grpc.server import GrpcFrontend
from conch.server.frontends.parts import Parts
from conch.server.options.server_options import ServerOptions
from tests.unit.server.frontends.grpc.fakes import FakeControl, FakeInference, echo, hold


@pytest.fixture
def inference() -> FakeInference:
    inference = FakeInference()
    inference.add("echo", echo)
    inference.add("held", hold)
    inference.add("decoupled", hold, decoupled=True)
    return inference


@pytest.fixture
def control() -> FakeControl:
    return FakeControl()


@pytest_asyncio.fixture
async def serve(inference, control):
    """Start frontends on free ports of the loopback address, with any options."""
    frontends: list[GrpcFrontend] = []

    async def start(**options) -> GrpcFrontend:
        chosen = ServerOptions(**{"grpc_address": "127.0.0.1", "grpc_port": 0} | options)
        frontend = GrpcFrontend(Parts(chosen, inference, control))
        await frontend.start()
        frontends.append(frontend)
        return frontend

    yield start
    for frontend in frontends:
        await frontend.stop(0)


@pytest_asyncio.fixture
async def frontend(serve) -> GrpcFrontend:
    return await serve()


@pytest_asyncio.fixture
async def client(frontend) -> AsyncIterator[triton_aio.InferenceServerClient]:
    async with triton_aio.InferenceServerClient(f"127.0.0.1:{frontend.port}") as client:
        yield client


@pytest_asyncio.fixture
async def blocking_client(frontend):
    """The client for threads; call it by `asyncio.to_thread`."""
    client = triton.InferenceServerClient(f"127.0.0.1:{frontend.port}")
    yield client
    await asyncio.to_thread(client.close)
