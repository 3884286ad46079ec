"""A short run of `tests.server.robustness.fuzz` on the HTTP side; the long ones are by hand."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.server.robustness.fuzz import Report, Target, live_objects, run, run_case
from tests.server.robustness.fuzz_server import FuzzServer, fuzz_server, resident_bytes
from tests.server.robustness.http_input import conversation, framed, infer_request
from tests.server.robustness.http_targets import HTTP_TARGETS, ConnectionTarget, talk

CASES = 1_500


@pytest.mark.parametrize("kind", HTTP_TARGETS, ids=[kind.name for kind in HTTP_TARGETS])
async def test_whatever_is_sent_is_answered_in_order_and_leaves_nothing(
    kind: Callable[[FuzzServer], Target], tmp_path: Path
) -> None:
    async with fuzz_server(tmp_path) as place:
        targets = [kind(place)]
        await run(place, targets, CASES // 2, seed=1)
        objects, memory = live_objects(), resident_bytes()
        (report,) = await run(place, targets, CASES, seed=2)
        assert not report.findings
        assert len(report.outcomes) > 1  # right and wrong input was among it
        assert live_objects() - objects < 5_000
        assert resident_bytes() - memory < 32 * 2**20


async def test_what_is_right_is_not_refused(tmp_path: Path) -> None:
    random = Random(3)
    async with fuzz_server(tmp_path) as place:
        for _ in range(300):
            (answer,) = await talk(place, [infer_request(random)])
            assert answer.status == 200, answer


async def test_requests_may_be_cut_anywhere(tmp_path: Path) -> None:
    random = Random(4)
    chunked = framed(random, b"POST /v2/repository/index HTTP/1.1", [b"Host: x"], b'{"ready":true}')
    stream = conversation(random) + chunked + infer_request(random)
    async with fuzz_server(tmp_path) as place:
        whole = await talk(place, [stream])
        assert len(whole) >= 3
        for cut in range(1, len(stream)):
            assert await talk(place, [stream[:cut], stream[cut:]]) == whole


async def test_a_server_that_does_not_answer_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.server.robustness.fuzz_server.MAX_WORKER_S", 1.0)
    async with fuzz_server(tmp_path) as place:
        monkeypatch.setattr(place.context, "handler", lambda request, reply: place.handled.append(request.method))
        report = Report("none")
        await run_case(place, ConnectionTarget(place), b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n", report)
        assert ["hangs" in text for text in report.findings] == [True]
