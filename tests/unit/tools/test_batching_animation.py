"""The animation of docs/batching.md shows what the batcher decides."""

from itertools import groupby

from tools.batching_animation import _LANES, _PICTURE, draw, simulate


def test_the_picture_is_that_of_this_code() -> None:
    assert _PICTURE.read_text("utf-8") == draw(), "make docs"


def test_every_request_waits_runs_and_ends_in_order() -> None:
    for _, rules in _LANES:
        requests = simulate(rules)
        assert all(request.queued <= request.started < request.ended for request in requests)
        sizes = [len(list(group)) for _, group in groupby(requests, key=lambda request: request.batch)]
        assert max(sizes) == rules.max_batch_size
        assert sum(sizes) == len(requests)
        ends = [request.ended for request in requests]
        assert ends == sorted(ends)


def test_only_the_delay_lets_the_first_request_wait() -> None:
    waits = [simulate(rules)[0].started for _, rules in _LANES]
    assert waits[:2] == [0, 0]
    assert waits[2] == _LANES[2][1].delay_ns
