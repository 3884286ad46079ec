"""Requests that say anything at all of tensors in shared memory, while its owner makes it smaller and larger."""

import json
import os
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory as Object
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from conch.base.errors import ConchError, drop_frames
from conch.domain.request import Timeline
from conch.server.core.shared_memory.regions import SharedMemory
from conch.server.frontends.endpoints import HTTP_PORT, Handlers
from conch.server.frontends.parts import Parts
from conch.server.frontends.v2_grpc.infer import GrpcInferEndpoint
from conch.server.options.server_options import ServerOptions
from tests.server.robustness.fuzz_server import MAX_INPUT_BYTES, FuzzServer, fuzz_server, settle
from tests.server.robustness.http_targets import check_alive, talk

CASES = 400
SIZE = 16 * 4096
# Right, and wrong in some way; sizes of FP32[1, 4], INT32[5], INT32[5000] and of whole regions among them.
REGIONS = ["all", "all", "all", "end", "zz", "", 7]
NUMBERS = [0, 0, 1, 4, 16, 16, 16, 20, 20_000, 4096, 4095, SIZE - 16, SIZE, SIZE + 1, -1, 2**31, 2**63 - 1]
ODD_NUMBERS = [2**64, 1.5, "16", None, True, [16]]


@pytest.fixture
def owned() -> Iterator[Object]:
    region = Object(create=True, size=SIZE)
    region.buf[:] = Random(1).randbytes(SIZE)
    yield region
    region.close()
    region.unlink()


def regions_of(owned: Object) -> SharedMemory:
    regions = SharedMemory(2**20)
    regions.register("all", f"/{owned.name}", 0, SIZE)
    regions.register("end", f"/{owned.name}", SIZE - 100, 100)
    return regions


def window(random: Random, odd: bool) -> dict[str, Any]:
    numbers = [*NUMBERS, *ODD_NUMBERS] if odd else NUMBERS
    parameters: dict[str, Any] = {}
    for key, values in (("region", REGIONS), ("byte_size", numbers), ("offset", numbers)):
        if random.random() < 0.9:
            parameters[f"shared_memory_{key}"] = random.choice(values)
    return parameters


def disturb(random: Random, owned: Object, regions: SharedMemory) -> None:
    """Now and then have the owner change its object, or register it again."""
    path = Path("/dev/shm", owned.name)
    if random.random() < 0.05:
        os.truncate(path, random.choice((0, 100, 4096, SIZE - 1)))
    elif random.random() < 0.1:
        os.truncate(path, SIZE)
        regions.unregister("", "system")
        regions.register("all", f"/{owned.name}", 0, SIZE)
        regions.register("end", f"/{owned.name}", SIZE - 100, 100)


MODELS = {"number": ("FP32", [1, 4]), "open": ("INT32", [5]), "text": ("BYTES", [1, 1]), "queue": ("FP32", [1, 4])}


async def test_over_http(owned: Object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random, regions, statuses = Random(5), regions_of(owned), set()
    async with fuzz_server(tmp_path) as place:
        options = ServerOptions(http_max_input_size=MAX_INPUT_BYTES)
        routes = Handlers(Parts(options, place.server.inference, place.server.control, shared_memory=regions)).router(
            HTTP_PORT
        )
        monkeypatch.setattr(place, "_routes", routes)
        for _ in range(CASES):
            disturb(random, owned, regions)
            model = random.choice(list(MODELS))
            datatype, shape = MODELS[model]
            document: dict[str, Any] = {
                "inputs": [
                    {"name": "INPUT0", "datatype": datatype, "shape": shape, "parameters": window(random, odd=True)}
                ]
            }
            if random.random() < 0.7:
                document["outputs"] = [{"name": "OUTPUT0", "parameters": window(random, odd=True)}]
            body = json.dumps(document).encode()
            head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            (answer,) = await talk(place, [head.encode() + body], allowed=(503,))
            statuses.add(answer.status)
        await check_alive(place)
        place.check_clean()
    assert {200, 400, 404} <= statuses


async def test_over_grpc(owned: Object, tmp_path: Path) -> None:
    random, regions = Random(6), regions_of(owned)
    async with fuzz_server(tmp_path) as place:
        parts = Parts(ServerOptions(), place.server.inference, place.server.control, shared_memory=regions)
        endpoint = GrpcInferEndpoint(parts)
        answers = [await asked(place, endpoint, random, owned, regions) for _ in range(CASES)]
        place.check_clean()
    refused = [answer for answer in answers if isinstance(answer, ConchError)]
    assert 0 < len(refused) < CASES
    assert not [error for error in refused if "internal" in error.message]


async def asked(
    place: FuzzServer, endpoint: GrpcInferEndpoint, random: Random, owned: Object, regions: SharedMemory
) -> bytes | ConchError:
    disturb(random, owned, regions)
    model = random.choice(list(MODELS))
    datatype, shape = MODELS[model]
    message = service_pb2.ModelInferRequest(model_name=model)
    entry = message.inputs.add(name="INPUT0", datatype=datatype, shape=shape)
    entries = [entry, message.outputs.add(name="OUTPUT0")] if random.random() < 0.7 else [entry]
    for listed in entries:
        for key, value in window(random, odd=False).items():
            if isinstance(value, str):
                listed.parameters[key].string_param = value
            else:
                listed.parameters[key].int64_param = value
    got: list[Any] = []
    try:
        endpoint.infer(message.SerializeToString(), (), got.append, Timeline())
    except ConchError as error:
        drop_frames(error)  # they hold the request, and its regions could not be unregistered
        return error
    await settle(lambda: bool(got))
    (answer,) = got
    if isinstance(answer, ConchError):
        drop_frames(answer)
    return answer if isinstance(answer, ConchError) else b"".join(answer)
