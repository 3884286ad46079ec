"""Metrics that a file declares, of a real server with models of every kind."""

import json
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.models import tensor, write_ensemble, write_identity, write_python, write_scripted
from tests.support.server_process import ConchProcess

pytestmark = pytest.mark.slow
TIMEOUT_S = 60
METRICS = """
metrics:
  - name: shop_in_flight
    kind: gauge
    help: Requests in flight.
    in_flight: true
    labels: {model: model}
  - name: shop_requests_total
    kind: counter
    help: Requests.
    labels: {model: model, tier: 'parameter("tier", "none")', reason: reason, hit: cache_hit}
  - name: shop_seconds
    kind: histogram
    help: Duration.
    labels: {model: model}
    where: success
    expression: duration
  - name: shop_tokens_total
    kind: counter
    help: Tokens.
    where: prompt_tokens > 0
    labels: {model: model, deterministic: 'parameter("temperature", 1) == 0'}
    expression: prompt_tokens + completion_tokens
  - name: from_a_model
    kind: gauge
    help: Also the name of a metric of a Python model.
    expression: 1
"""
WAITS = """
while not os.path.exists(GATE):
    time.sleep(0.02)
if request.inputs()[0].as_numpy().ravel()[0] < 0:
    return pb_utils.InferenceResponse(error=pb_utils.TritonError("negative"))
return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())])
"""
CLASHES = """
def initialize(self, args):
    family = pb_utils.MetricFamily("from_a_model", "Text.", pb_utils.MetricFamily.COUNTER)
    self.metric = family.Metric(labels={})
"""


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gate") / "open"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, gate: Path) -> Iterator[ConchProcess]:
    folder = tmp_path_factory.mktemp("custom")
    root = folder / "repository"
    ports = f"input {tensor('INPUT0', 'FP32', -1)} output {tensor('OUTPUT0', 'FP32', -1)}"
    write_identity(root, "identity", batch=4)
    write_identity(root, "cached", extra="response_cache { enable: true }")
    write_identity(root, "counted", batch=4, extra="sequence_batching { }")
    write_python(root, "waits", ports, WAITS.replace("GATE", repr(str(gate))), more=CLASHES)
    batched = f"max_batch_size: 4 input {tensor('INPUT0', 'FP32', -1)}"
    step = ("identity", {"INPUT0": "INPUT0"}, {"OUTPUT0": "OUTPUT0"})
    write_ensemble(root, "chain", batched, f"output {tensor('OUTPUT0', 'FP32', -1)}", step)
    write_scripted(root, "words", {"rules": [{"match": "", "reply": "one two three"}]})
    path = folder / "metrics.yaml"
    path.write_text(METRICS)
    flags = (f"--metrics-config=custom_metrics={path}", "--cache-config=local,size=1048576")
    with ConchProcess(root, *flags, log=folder / "log") as process:
        yield process


def post(server: ConchProcess, path: str, body: dict[str, Any]) -> Any:
    data = json.dumps(body).encode()
    asked = urllib.request.Request(f"http://{server.http}{path}", data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(asked, timeout=TIMEOUT_S) as reply:
            return json.load(reply)
    except urllib.error.HTTPError as error:
        return json.load(error)


def infer(server: ConchProcess, model: str, *shape: int, value: float = 1.0, **parameters: Any) -> Any:
    values = {"name": "INPUT0", "datatype": "FP32", "shape": shape, "data": [value] * shape[-1]}
    return post(server, f"/v2/models/{model}/infer", {"inputs": [values], "parameters": parameters})


def scrape(server: ConchProcess) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.ports['metrics']}/metrics", timeout=TIMEOUT_S) as reply:
        text = reply.read().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def requests(server: ConchProcess, model: str) -> dict[tuple[str, str, str], float]:
    """Return the numbers of requests of a model by tier, reason and hit."""
    counts = {}
    for (name, labels), value in scrape(server).items():
        values = dict(labels)
        if name == "shop_requests_total" and values["model"] == model:
            counts[values["tier"], values["reason"], values["hit"]] = value
    return counts


def test_models_of_every_kind_are_counted(server: ConchProcess) -> None:
    infer(server, "identity", 1, 2, tier="gold")
    infer(server, "identity", 1, 2)
    assert requests(server, "identity") == {("gold", "", "false"): 1, ("none", "", "false"): 1}
    infer(server, "chain", 1, 2, tier="gold")
    assert requests(server, "chain") == {("gold", "", "false"): 1}
    for _ in range(2):
        infer(server, "cached", 2, value=7.0)
    assert requests(server, "cached") == {("none", "", "false"): 1, ("none", "", "true"): 1}
    infer(server, "counted", 1, 2, sequence_id=1, sequence_start=True, sequence_end=True)
    assert sum(requests(server, "counted").values()) == 1
    metrics = scrape(server)
    assert metrics["shop_seconds_count", (("model", "chain"),)] == 1
    assert metrics["shop_in_flight", (("model", "identity"),)] == 0


def test_requests_in_flight_are_counted_while_they_run(server: ConchProcess, gate: Path) -> None:
    threads = [threading.Thread(target=infer, args=(server, "waits", 1), kwargs={"value": v}) for v in (1.0, -1.0, 1.0)]
    for thread in threads:
        thread.start()
    key = ("shop_in_flight", (("model", "waits"),))
    try:
        deadline = time.monotonic() + TIMEOUT_S
        while scrape(server).get(key) != 3:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        gate.touch()
        for thread in threads:
            thread.join()
    assert scrape(server)[key] == 0
    assert requests(server, "waits") == {("none", "", "false"): 2, ("none", "BACKEND", "false"): 1}


def test_language_models_are_counted_with_their_tokens(server: ConchProcess) -> None:
    asked = {"model": "words", "prompt": "say it", "max_tokens": 20, "temperature": 0}
    usage = post(server, "/v1/completions", asked)["usage"]
    metrics = scrape(server)
    key = ("shop_tokens_total", (("deterministic", "true"), ("model", "words")))
    assert metrics[key] == usage["total_tokens"] > 0
    assert metrics["shop_in_flight", (("model", "words"),)] == 0
    post(server, "/v2/models/words/generate", {"text_input": "say it", "max_tokens": 20})
    assert metrics["shop_requests_total", (("hit", "false"), ("model", "words"), ("reason", ""), ("tier", "none"))] == 1
    assert sum(requests(server, "words").values()) == 2


def test_a_declared_metric_has_precedence_over_one_of_a_model(server: ConchProcess) -> None:
    infer(server, "identity", 1, 2)
    with urllib.request.urlopen(f"http://127.0.0.1:{server.ports['metrics']}/metrics", timeout=TIMEOUT_S) as reply:
        assert reply.read().decode().count("# TYPE from_a_model") == 1


def test_a_file_with_a_mistake_prevents_the_start(tmp_path: Path) -> None:
    write_identity(tmp_path / "repository", "identity")
    path = tmp_path / "metrics.yaml"
    path.write_text("metrics:\n  - {name: nv_inference_count, kind: counter, help: Mine.}\n")
    flags = [f"--model-repository={tmp_path / 'repository'}", f"--metrics-config=custom_metrics={path}"]
    done = subprocess.run(
        [sys.executable, "-m", "conch", "serve", *flags], capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 1
    message = f'{path}:2: metrics[0].name: the name \\"nv_inference_count\\" is a metric of the server'
    assert message in done.stderr
