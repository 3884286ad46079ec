"""Which batches run alone, and which beside others. Times are numbers; queued at 0 means not queued."""

from conch.server.backends.threaded import Lanes


def after_one(lanes: Lanes, now: int, *, waited: float = 0.0) -> Lanes:
    """Run one batch alone until `now`."""
    assert lanes.begin(1, 0, 0)
    lanes.end(now, waited)
    return lanes


def test_one_lane_is_an_instance_with_one_batch_at_a_time() -> None:
    lanes = Lanes()
    assert lanes.takes(0)
    assert lanes.begin(1, 5, 0)
    assert not lanes.takes(1)
    lanes.end(10, 0.9)
    assert lanes.begin(1, 5, 5)


def test_requests_one_after_the_other_run_alone() -> None:
    lanes = Lanes(2)
    for now in range(10, 100, 10):
        assert lanes.begin(1, 0, now)
        assert not lanes.takes(1)
        lanes.end(now + 5, 0.0)


def test_a_request_that_waited_opens_the_lanes() -> None:
    lanes = after_one(Lanes(2), 10)
    assert not lanes.begin(1, 0, 5)  # queued while the first one ran
    assert lanes.takes(1)
    assert not lanes.begin(1, 0, 12)
    assert not lanes.takes(2)
    lanes.end(20, 0.0)
    assert lanes.takes(1)


def test_requests_left_in_the_queue_open_the_lanes() -> None:
    assert not Lanes(2).begin(1, 1, 0)


def test_lanes_pay_from_the_break_even_on() -> None:
    lanes = after_one(Lanes(4, break_even=3), 10)
    assert lanes.begin(1, 0, 5)
    lanes.end(20, 0.0)
    assert not lanes.begin(1, 1, 15)


def test_several_requests_at_once_are_divided_by_one_batch() -> None:
    lanes = after_one(Lanes(2), 10)
    assert lanes.begin(2, 0, 5)
    assert not lanes.takes(1)


def test_a_batch_of_several_runs_in_a_lane_beside_another() -> None:
    lanes = after_one(Lanes(2), 10)
    assert not lanes.begin(1, 2, 5)
    assert not lanes.begin(2, 0, 6)


def test_solitary_batches_run_alone_again_after_some_time() -> None:
    lanes = after_one(Lanes(2), 10)
    assert not lanes.begin(1, 0, 5)
    lanes.end(20, 0.0)
    alone = []
    for now in range(30, 100, 10):
        alone.append(lanes.begin(1, 0, now))
        lanes.end(now + 5, 0.0)
    assert alone == [False, False, False, True, True, True, True]


def test_a_batch_that_waited_for_cores_longer_than_a_lane_takes_is_followed_by_lanes() -> None:
    assert not after_one(Lanes(2, patience=0.4), 10, waited=0.5).begin(1, 0, 11)
    assert after_one(Lanes(2, patience=0.4), 10, waited=0.3).begin(1, 0, 11)
