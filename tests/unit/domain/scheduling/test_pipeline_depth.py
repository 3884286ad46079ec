"""How many batches are sent ahead."""

from conch.domain.scheduling.pipeline_depth import PipelineDepth

US = 1_000
MS = 1_000_000


def measured(*executions_ns: int) -> PipelineDepth:
    pace = PipelineDepth()
    for execution in executions_ns:
        pace.measured(execution)
    return pace


def test_nothing_is_sent_ahead_to_a_process_that_was_never_measured() -> None:
    assert [PipelineDepth().depth(0, crowded=crowded) for crowded in (False, True)] == [0, 0]


def test_one_fast_execution_does_not_make_a_fast_model() -> None:
    assert measured(10 * US).depth(0, crowded=True) == 0


def test_a_fast_model_gets_several_batches_and_a_short_one_gets_one_when_it_is_crowded() -> None:
    fast, short, slow = (measured(*[time] * 60) for time in (50 * US, 2 * MS, 50 * MS))
    assert [pace.depth(0, crowded=False) for pace in (fast, short, slow)] == [4, 0, 0]
    assert [pace.depth(0, crowded=True) for pace in (fast, short, slow)] == [4, 1, 0]


def test_nothing_is_sent_behind_an_execution_that_takes_unusually_long() -> None:
    fast = measured(*[50 * US] * 60)
    assert fast.depth(9 * MS, crowded=False) == 4
    assert [fast.depth(10 * MS, crowded=crowded) for crowded in (False, True)] == [0, 0]


def test_a_model_that_has_become_slow_is_not_fast_any_more() -> None:
    assert measured(*[50 * US] * 60, 100 * MS).depth(0, crowded=True) == 0
