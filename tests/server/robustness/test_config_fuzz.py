"""Short runs of `tests.server.robustness.config_fuzz`, and configurations that have stopped servers."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.server.robustness.config_fuzz import Client, Report, check, fuzz_loads, fuzz_start, settled, watched
from tests.support.models import tensor, write_config, write_identity
from tests.support.server_process import ConchProcess

IN = {"name": "IN", "data_type": "TYPE_FP32", "dims": [1]}
OUT = {"name": "OUT", "data_type": "TYPE_FP32", "dims": [1]}
HUGE = {"name": "HUGE", "data_type": "TYPE_FP32", "dims": [2**62] * 3, "optional": True}
IO = {"backend": "identity", "max_batch_size": 4, "input": [IN], "output": [OUT]}
BIG = 2**31 - 1
WARM = {"IN": {"data_type": "TYPE_FP32", "dims": [1], "zero_data": True}}
CONFIGURATIONS: dict[str, tuple[dict[str, Any], bool]] = {
    "priority_levels": ({"dynamic_batching": {"priority_levels": 2**64 - 1, "default_priority_level": 2**63}}, True),
    "levels of 2e7": ({"dynamic_batching": {"priority_levels": 20_000_000, "default_priority_level": 1}}, True),
    "max_queue_size": ({"dynamic_batching": {"default_queue_policy": {"max_queue_size": 2**32 - 1}}}, True),
    "timeout": ({"dynamic_batching": {"default_queue_policy": {"default_timeout_microseconds": 2**64 - 1}}}, True),
    "max_queue_delay": ({"dynamic_batching": {"max_queue_delay_microseconds": 2**64 - 1}, "max_batch_size": 1}, True),
    "candidates": ({"sequence_batching": {"oldest": {"max_candidate_sequences": BIG}}}, True),
    "idle": ({"sequence_batching": {"max_sequence_idle_microseconds": 2**64 - 1}}, True),
    "direct": ({"sequence_batching": {"direct": {}}, "max_batch_size": BIG}, False),
    "count": ({"instance_group": [{"count": BIG}]}, False),
    "count of 1024": ({"instance_group": [{"count": 1024}]}, True),
    "warm-up": ({"model_warmup": [{"name": "w", "batch_size": BIG, "inputs": WARM}], "max_batch_size": BIG}, False),
    "warm-up count": ({"model_warmup": [{"name": "w", "batch_size": 1, "count": BIG, "inputs": WARM}]}, False),
    "warm-up of 4096": (
        {"model_warmup": [{"name": "w", "batch_size": 4096, "count": 2, "inputs": WARM}], "max_batch_size": 4096},
        True,
    ),
    "dims": ({"input": [IN, HUGE]}, True),
    "label file": ({"output": [OUT | {"label_filename": "large"}]}, False),
    "preferred sizes": ({"dynamic_batching": {"preferred_batch_size": [1] * 100_000}}, False),
    "versions": ({"version_policy": {"latest": {"num_versions": 2**32 - 1}}}, True),
    "parameters": ({"parameters": {"x": {"string_value": "x" * 1_000_000}}}, True),
    "nesting": ({"parameters": json.loads('{"x":' * 300 + "1" + "}" * 300)}, False),
}  # fmt: skip


@pytest.fixture
def conch(tmp_path: Path) -> Any:
    write_identity(tmp_path / "models", "part")
    folder = write_config(tmp_path / "models", "case", "")
    with (folder / "large").open("wb") as file:
        file.truncate(1 << 40)
    with ConchProcess(tmp_path / "models", "--model-control-mode=explicit", log=tmp_path / "log") as server:
        yield server


def test_configurations_that_have_stopped_servers(conch: ConchProcess) -> None:
    report = Report()
    port = conch.ports["http"]
    with watched(conch, report), Client(port) as client:
        for name, (fields, served) in CONFIGURATIONS.items():
            parameters = {"config": json.dumps(IO | fields)}
            status, body = client.ask("POST", "/v2/repository/models/case/load", {"parameters": parameters})
            assert status == 200 if served else status in (400, 500), (name, body)
            if status == 200 and "sequence_batching" not in fields:
                request = {
                    "inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, 1], "data": [1]}],
                    "parameters": {"priority": 2**62, "timeout": 10_000_000},
                }
                status, body = client.ask("POST", "/v2/models/case/infer", request)
                assert status == 200, (name, body)
    check(conch, report)
    assert report.findings == []


def test_ensembles_of_ensembles_take_no_time_and_no_depth(tmp_path: Path) -> None:
    io = f"input {tensor('IN', 'FP32', -1)} output {tensor('OUT', 'FP32', -1)}"
    step = 'step {{ model_name: "{}" input_map {{ key: "{}" value: "{}" }} output_map {{ key: "{}" value: "{}" }} }}'
    root = tmp_path / "models"
    write_identity(root, "e0")
    for number in range(1, 61):
        before = f"e{number - 1}"
        given, taken = ("INPUT0", "OUTPUT0") if number == 1 else ("IN", "OUT")
        steps = step.format(before, given, "IN", taken, "t") + step.format(before, given, "t", taken, "OUT")
        write_config(root, f"e{number}", f'platform: "ensemble" {io} ensemble_scheduling {{ {steps} }}')
    report = Report()
    flags = ("--exit-on-error=false", "--strict-readiness=false")
    with ConchProcess(root, *flags, log=tmp_path / "log", wait="live") as server:
        with watched(server, report), Client(server.ports["http"]) as client:
            states = {row["name"]: (row["state"], row.get("reason", "")) for row in settled(server, report)}
            request = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1], "data": [1]}]}
            status, _ = client.ask("POST", "/v2/models/e8/infer", request)
        check(server, report)
    assert status == 200
    assert report.findings == []
    assert states["e8"][0] == "READY"
    assert states["e10"][0] == "UNAVAILABLE"
    assert "runs 1024 steps for each request" in states["e10"][1]
    assert states["e60"][0] == "UNAVAILABLE"


def test_any_configuration_is_served_or_refused_over_the_load_api(tmp_path: Path) -> None:
    report = fuzz_loads(tmp_path, seed=1, cases=120)
    assert report.findings == []
    assert {"served, 200"} < report.outcomes.keys()


def test_any_configuration_is_served_or_refused_at_start(tmp_path: Path) -> None:
    report = fuzz_start(tmp_path, seed=2, cases=40)
    assert report.findings == []
    assert {"READY", "UNAVAILABLE"} <= report.outcomes.keys()
