"""A short run of `tests.server.robustness.fuzz` on the gRPC side; the long ones are by hand."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.server.robustness import grpc_input
from tests.server.robustness.fuzz import Target, live_objects, run
from tests.server.robustness.fuzz_server import FuzzServer, fuzz_server, resident_bytes
from tests.server.robustness.grpc_targets import GRPC_TARGETS, GrpcFuzzServer, talk

CASES = 800


@pytest.mark.parametrize("kind", GRPC_TARGETS, ids=[kind.name for kind in GRPC_TARGETS])
async def test_whatever_is_sent_is_answered_and_leaves_nothing(
    kind: Callable[[FuzzServer], Target], tmp_path: Path
) -> None:
    async with fuzz_server(tmp_path) as place:
        targets = [kind(place)]
        await run(place, targets, CASES // 2, seed=1)
        objects, memory = live_objects(), resident_bytes()
        (report,) = await run(place, targets, CASES, seed=2)
        assert not report.findings
        assert len(report.outcomes) > 1
        assert live_objects() - objects < 5_000
        assert resident_bytes() - memory < 64 * 2**20


async def test_what_is_right_is_not_refused(tmp_path: Path) -> None:
    random = Random(3)
    async with fuzz_server(tmp_path) as place:
        for _ in range(100):
            streams, goaway = await talk(GrpcFuzzServer(place), [grpc_input.conversation(random)])
            assert goaway is None
            assert {stream.status for stream in streams.values()} <= {"0", "12", "200"}, streams


async def test_a_conversation_may_be_cut_anywhere(tmp_path: Path) -> None:
    random = Random(8)
    conversation = min(
        (grpc_input.conversation(random) for _ in range(20)), key=lambda talk_bytes: abs(len(talk_bytes) - 1500)
    )
    async with fuzz_server(tmp_path) as place:
        whole = await talk(GrpcFuzzServer(place), [conversation])
        assert whole[0]
        for cut in range(1, len(conversation)):
            assert await talk(GrpcFuzzServer(place), [conversation[:cut], conversation[cut:]]) == whole
