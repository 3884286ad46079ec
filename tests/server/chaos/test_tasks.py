"""A server in this process, whose tasks can be counted: what deaths of model processes leave behind."""

import asyncio
import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from conch.base.errors import ConchError
from conch.domain.request import InferRequest, InferResponse
from conch.domain.tensor import Tensor
from conch.server.options.server_options import ServerOptions
from conch.server.server import Server
from tests.server.chaos.accounting import TIMEOUT_S, held_resources, tasks
from tests.server.chaos.concurrent_clients import when
from tests.server.chaos.crashing_models import write_crashing


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """Leave the collector as it was: a server sets it for itself."""
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


async def ask(server: Server, **order: object) -> InferResponse | ConchError | None:
    answer: asyncio.Future[InferResponse | ConchError | None] = asyncio.get_running_loop().create_future()
    given = Tensor("INPUT0", "INT32", (1, 1), b"\7\0\0\0")
    request = InferRequest("single", [given], parameters=order)
    model = server.inference.model("single", None)
    server.inference.infer(model, request, lambda response, _: answer.set_result(response))
    return await asyncio.wait_for(answer, TIMEOUT_S)


async def test_no_task_is_left(tmp_path: Path) -> None:
    write_crashing(tmp_path, "single")
    options = ServerOptions(model_repository=(str(tmp_path),), allow_http=False, allow_grpc=False, allow_metrics=False)
    async with Server(options).running() as server:
        await ask(server, do="kill")
        assert isinstance(await ask(server), InferResponse)
        before, held = tasks(), held_resources(os.getpid())
        for event in ("kill", "exit", "segfault", "babble", "system_exit"):
            assert isinstance(await ask(server, do=event), ConchError)
            assert isinstance(await ask(server), InferResponse)
        await when(lambda: held_resources(os.getpid()) == held)
        assert tasks() == before
    assert sum(tasks().values()) == 1
