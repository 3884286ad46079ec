"""The comparison of tuners: what is read from Model Analyzer's checkpoint, and the table."""

from typing import Any

from benchmarks.tuning.__main__ import (
    ANALYZER,
    CONCH_TUNE,
    DEFAULT,
    MODEL,
    ServerTable,
    TunerResult,
    best_of_checkpoint,
    markdown,
)


def _run(instances: int, *figures: tuple[float, float]) -> list[Any]:
    config = {"maxBatchSize": 4, "instanceGroup": [{"count": instances}]}
    measurements = {}
    for number, (throughput, p99) in enumerate(figures):
        tags = {"perf_throughput": throughput, "perf_latency_p99": p99}
        data = {name: [name, {"_value": value}] for name, value in tags.items()}
        measurements[str(number)] = {"_model_config_measurements": [{"_non_gpu_data_from_tag": data}]}
    return [{"_model_run_configs": [{"_model_config_variant": {"model_config": config}}]}, measurements]


def test_the_best_configuration_within_the_constraint_is_taken() -> None:
    variants = {"a": _run(1, (100, 50)), "b": _run(2, (200, 90)), "c": _run(3, (300, 101))}

    result = best_of_checkpoint({"ResultManager.results": {"_results": {MODEL: variants}}}, 100, 9)

    assert result.trials == 3
    assert result.config == {"maxBatchSize": 4, "instanceGroup": [{"count": 2}]}


def test_no_configuration_within_the_constraint_is_stated() -> None:
    result = best_of_checkpoint({"ResultManager.results": {"_results": {MODEL: {"a": _run(1, (100, 50))}}}}, 10, 9)

    assert result.config is None
    assert result.note == "none within the constraint"


def test_the_table_states_gains_within_rounds() -> None:
    config = {"max_batch_size": 8, "instance_group": [{"count": 1}, {"count": 2}]}
    table = ServerTable("conch", {DEFAULT: TunerResult(config, 0, 0), CONCH_TUNE: TunerResult(config, 7, 60)})
    table.results[ANALYZER] = TunerResult(None, 0, 5, "failed")
    table.rounds = {DEFAULT: [(100, 20), (50, 30)], CONCH_TUNE: [(200, 9), (110, 11)]}

    text = markdown(table)

    assert "| conch tune | 60 | 7 | 3 × 8 | 155 (110–200) | 2.10 | 10 |" in text
    assert "| Model Analyzer |  |  | failed | | | |" in text
