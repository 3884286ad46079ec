"""The response cache of a running server: hits, misses, eviction and counters."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.server.clients import Client, response_id
from tests.support.models import tensor, write_ensemble, write_python
from tests.support.server_process import ConchProcess

# Every execution has a number, so that a repeated answer shows.
COUNTED = """
data = request.inputs()[0].as_numpy()
if data.ravel()[0] < 0:
    return pb_utils.InferenceResponse(error=pb_utils.TritonError("negative"))
self.runs = getattr(self, "runs", 0) + 1
scale = json.loads(request.parameters()).get("scale", 1)
outputs = [pb_utils.Tensor("OUTPUT0", data * scale), pb_utils.Tensor("RUN", np.array([self.runs], np.int32))]
return pb_utils.InferenceResponse([output for output in outputs if output.name() in request.requested_output_names()])
"""
OUTPUTS = f"output [{tensor('OUTPUT0', 'FP32', -1, -1)}, {tensor('RUN', 'INT32', 1)}]"


@pytest.fixture(scope="module")
def conch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    root = tmp_path_factory.mktemp("cache")
    models = root / "models"
    config = f"response_cache {{ enable: true }} input {tensor('INPUT0', 'FP32', -1, -1)} {OUTPUTS}"
    for name in ("http", "grpc", "errors", "reloaded", "below", "large"):
        write_python(models, name, config, COUNTED)
    write_ensemble(
        models,
        "above",
        f"response_cache {{ enable: true }} input {tensor('IN', 'FP32', -1, -1)}",
        f"output {tensor('RUN', 'INT32', 1)}",
        ("below", {"INPUT0": "IN"}, {"RUN": "RUN"}),
    )
    flags = ["--cache-config=local,size=100000", "--model-control-mode=explicit", "--load-model=*"]
    with ConchProcess(models, *flags, log=root / "log") as server:
        yield server


@pytest.fixture(params=["http", "grpc"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def run(result: Any) -> int:
    return int(result.as_numpy("RUN")[0])


def test_the_same_again_is_answered_from_the_cache_and_anything_else_is_not(conch: ConchProcess, protocol: str) -> None:
    flat, tall = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(6, dtype=np.float32).reshape(3, 2)
    with Client(conch, protocol) as client:
        first = client.ask(protocol, {"INPUT0": flat}, request_id="first")
        again = client.ask(protocol, {"INPUT0": flat}, request_id="again", priority=3, timeout=10_000_000)
        assert [run(first), run(again), response_id(again)] == [1, 1, "again"]
        np.testing.assert_array_equal(again.as_numpy("OUTPUT0"), flat)
        other = client.ask(protocol, {"INPUT0": tall})  # the same bytes
        assert (run(other), other.as_numpy("OUTPUT0").shape) == (2, (3, 2))
        scaled = client.ask(protocol, {"INPUT0": flat}, parameters={"scale": 2})
        np.testing.assert_array_equal(scaled.as_numpy("OUTPUT0"), 2 * flat)
        assert client.ask(protocol, {"INPUT0": flat}, outputs=("OUTPUT0",)).as_numpy("RUN") is None
        assert [run(client.ask(protocol, {"INPUT0": shape})) for shape in (flat, tall)] == [1, 2]
        statistics = client.statistics(protocol)
    counts = {name: int(duration.get("count", 0)) for name, duration in statistics["inference_stats"].items()}
    assert counts["success"] == counts["queue"] == 7
    assert counts["cache_hit"] == 3
    assert counts["cache_miss"] == counts["compute_infer"] == 4
    assert int(statistics["execution_count"]) == int(statistics["inference_count"]) == 4
    metrics = conch.metrics()
    for name, count in (("nv_cache_num_hits_per_model", 3), ("nv_cache_num_misses_per_model", 4)):
        assert f'{name}{{model="{protocol}",version="1"}} {count}' in metrics


def test_errors_are_not_kept(conch: ConchProcess, protocol: str) -> None:
    with Client(conch, protocol) as client:
        before = int(client.statistics("errors")["inference_stats"]["fail"].get("count", 0))
        for _ in range(2):
            with pytest.raises(InferenceServerException, match="negative"):
                client.ask("errors", {"INPUT0": np.full((1, 1), -1, np.float32)})
        statistics = client.statistics("errors")["inference_stats"]
    assert int(statistics["fail"]["count"]) == before + 2
    assert int(statistics["cache_hit"].get("count", 0)) == 0


def test_hits_come_over_streams_too(conch: ConchProcess) -> None:
    data = {"INPUT0": np.full((1, 2), 7, np.float32)}
    results: list[Any] = []
    with Client(conch, "grpc") as client:
        client.client.start_stream(lambda result, error: results.append(error or result))
        for number in range(20):
            client.client.async_stream_infer("grpc", client.inputs(data), request_id=str(number))
        client.client.stop_stream()
        assert [response_id(result) for result in results] == [str(number) for number in range(20)]
        # Those that come before the first answer are executed each; what comes now is not.
        assert run(client.ask("grpc", data)) in {run(result) for result in results}


def test_a_reload_takes_the_answers_away(conch: ConchProcess) -> None:
    data = {"INPUT0": np.ones((1, 1), np.float32)}
    with Client(conch, "http") as client:
        config = client.client.get_model_config("reloaded")
        assert [run(client.ask("reloaded", data)) for _ in range(2)] == [1, 1]
        config["parameters"] = {"changed": {"string_value": "yes"}}
        client.client.load_model("reloaded", config=json.dumps(config))
        assert client.statistics("reloaded")["inference_stats"]["cache_hit"]["count"] == 0
        client.ask("reloaded", data)
        statistics = client.statistics("reloaded")["inference_stats"]
    assert (statistics["cache_hit"]["count"], statistics["cache_miss"]["count"]) == (0, 1)


def test_an_ensemble_has_its_own_cache_entries(conch: ConchProcess) -> None:
    data = np.ones((1, 1), np.float32)
    with Client(conch, "http") as client:
        assert [run(client.ask("above", {"IN": data})) for _ in range(2)] == [1, 1]
        above, below = client.statistics("above"), client.statistics("below")
        assert above["inference_stats"]["cache_hit"]["count"] == 1
        assert below["inference_stats"]["cache_miss"]["count"] == 1
        assert below["inference_stats"]["cache_hit"]["count"] == 0
        # The same step again for another request of the ensemble is a hit of the step.
        client.ask("above", {"IN": data}, parameters={"other": 1})
        client.ask("below", {"INPUT0": data}, outputs=("RUN",))
        assert client.statistics("below")["inference_stats"]["cache_hit"]["count"] == 1
        assert client.statistics("above")["inference_stats"]["cache_miss"]["count"] == 2


def test_the_cache_stays_within_its_bytes(conch: ConchProcess) -> None:
    with Client(conch, "http") as client:
        for number in range(6):
            client.ask("large", {"INPUT0": np.full((70, 100), number, np.float32)})
        assert run(client.ask("large", {"INPUT0": np.full((70, 100), 5, np.float32)})) == 6
        # One that is larger than the whole cache is answered, and executed the next time.
        for _ in range(2):
            client.ask("large", {"INPUT0": np.zeros((300, 100), np.float32)})
        statistics = client.statistics("large")["inference_stats"]
    assert (statistics["cache_hit"]["count"], statistics["cache_miss"]["count"]) == (1, 8)
    numbers = dict(re.findall(r"^nv_cache_(util|num_evictions) (\S+)$", conch.metrics(), re.MULTILINE))
    assert 0 < float(numbers["util"]) <= 1
    assert int(numbers["num_evictions"]) >= 3
    assert len(re.findall(r"Failed to insert key \[\w+\] into response cache: .* model 'large' ", conch.text)) == 1


def test_without_a_cache_the_model_is_served_and_a_warning_logged(tmp_path: Path) -> None:
    config = f"response_cache {{ enable: true }} input {tensor('INPUT0', 'FP32', -1, -1)} {OUTPUTS}"
    write_python(tmp_path / "models", "alone", config, COUNTED)
    with ConchProcess(tmp_path / "models", log=tmp_path / "log") as server, Client(server, "http") as client:
        assert [run(client.ask("alone", {"INPUT0": np.ones((1, 1), np.float32)})) for _ in range(2)] == [1, 2]
        assert "response_cache of model 'alone' has no effect" in server.text
        assert "nv_cache" not in server.metrics()
