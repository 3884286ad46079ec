from dataclasses import replace

import numpy as np
from benchmarks.harness.figures import Result
from benchmarks.harness.load import Load
from benchmarks.harness.measure import CountedLoad, Sample, load_figures, note
from benchmarks.harness.payloads import Question, Wire
from benchmarks.harness.workloads import LoadWork, all_works

QUESTION = Question("identity", {"INPUT0": np.zeros((1, 16), dtype=np.float32)}, "OUTPUT0", check=lambda _: None)


def test_a_round_is_counted_in_questions_not_in_streams() -> None:
    work = LoadWork("stream", {}, QUESTION, Wire.STREAM, in_flight=1, messages=100)
    result = Result(work.name, load_figures(work))
    note(result, work, "conch", Sample(Load(10, 5.0, 2.0, 3.0), cpu_seconds=0.1, memory_bytes=7_000_000))
    values = {figure.name: figure.rounds["conch"] for figure in result.figures}
    assert values["rate"] == [500]
    assert values["cpu"] == [100]
    assert values["memory"] == [7]
    assert values["bandwidth"] == [500 * 64 / 1e6]


def test_a_round_of_a_decoupled_model_is_counted_in_responses() -> None:
    work = LoadWork("stream", {}, replace(QUESTION, responses=1000), Wire.STREAM, 1)
    result = Result(work.name, load_figures(work))
    note(result, work, "conch", Sample(Load(10, 5.0, 2.0, 3.0), cpu_seconds=0.1, memory_bytes=7_000_000))
    assert result.figure("rate").rounds["conch"] == [5000]
    assert result.figure("cpu").rounds["conch"] == [10]


def test_the_figure_of_the_first_target_stands_first() -> None:
    for work in all_works():
        if isinstance(work, LoadWork):
            assert load_figures(work)[0].name == work.counts
            assert not work.targets or work.counts == work.targets[0].figure


def test_names_of_works_are_unique() -> None:
    names = [work.name for work in all_works()]
    assert len(names) == len(set(names))


def test_a_counted_load_aims_at_the_seconds_by_the_rate_of_the_last_time() -> None:
    asked: list[int] = []
    rates = iter([50.0, 1000.0, 800.0])

    def load(requests: int) -> Load:
        asked.append(requests)
        return Load(requests, next(rates), 1.0, 1.0)

    counted = CountedLoad(load, first=20)
    counted(2)
    counted(3)
    assert asked == [20, 100, 3000]
