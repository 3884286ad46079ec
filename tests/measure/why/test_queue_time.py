"""What users of Triton have asked about queue time, as real load on a real server that `conch why` explains.

Each test makes one of these happen: https://github.com/triton-inference-server/server/issues/8251, 7318, 7492, 7776.
Models sleep, so that the cause is the same however busy the machine is.
"""

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest

from conch.domain.causes.explain import Explainer
from conch.measure.why.source import fetch_log
from tests.support.models import tensor, write_python, write_scripted
from tests.support.server_process import ConchProcess

TENSORS = f"input {tensor('IN', 'UINT8', 1)} output {tensor('OUT', 'UINT8', 1)} "
RESOURCE = 'instance_group [{ kind: KIND_CPU rate_limiter { resources [{ name: "R" count: 1 }] } }] '
# Sleeps for the input in milliseconds, for each request of a batch.
SLEEP = """
time.sleep(request.inputs()[0].as_numpy().reshape(-1)[0] / 1000)
return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())])
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    models = tmp_path_factory.mktemp("models")
    delayed = "dynamic_batching { max_queue_delay_microseconds: 80000 }"
    write_python(models, "delayed", f"max_batch_size: 32 {TENSORS} {delayed}", SLEEP)
    write_python(models, "bursts", f"max_batch_size: 4 {TENSORS} dynamic_batching {{ }}", SLEEP)
    write_python(models, "crowded", f"max_batch_size: 4 {TENSORS} dynamic_batching {{ }}", SLEEP)
    oldest = "sequence_batching { oldest { max_candidate_sequences: 8 } }"
    write_python(models, "sequences", f"max_batch_size: 8 {TENSORS} {oldest}", SLEEP)
    for name in ("holder", "limited"):
        write_python(models, name, f"{RESOURCE} {TENSORS}", SLEEP)
    write_scripted(
        models, "llm", {"reply": "one two three four", "step_ms": 30, "chat_template": "{{ messages[0].content }}"}
    )
    with ConchProcess(models, "--rate-limit=execution_count", log=models.parent / "log") as process:
        yield process


def post(server: ConchProcess, path: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """Send JSON and return the answer."""
    url = f"http://{server.http}{path}"
    with urllib.request.urlopen(url, json.dumps(document).encode(), timeout=60) as response:
        answer: dict[str, Any] = json.load(response)
        return answer


def ask(server: ConchProcess, model: str, sleep_ms: int = 2, id_: str = "", **parameters: object) -> None:
    """Send a request of one element."""
    tensors = [{"name": "IN", "datatype": "UINT8", "shape": [1, 1], "data": [sleep_ms]}]
    if model in ("holder", "limited"):
        tensors[0]["shape"] = [1]
    post(server, f"/v2/models/{model}/infer", {"id": id_, "inputs": tensors, "parameters": parameters})


def conch_why(server: ConchProcess, *arguments: str) -> dict[str, Any]:
    """The answer of the command."""
    command = [sys.executable, "-m", "conch", "why", *arguments, "--json", "--url", server.http]
    document: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)
    return document


def test_two_milliseconds_of_compute_and_a_long_queue(server: ConchProcess) -> None:
    """8251: all requests alike take far longer than the model. They wait out the delay, for mates that do not come."""
    for number in range(20):
        ask(server, "delayed", id_=f"delayed-{number}")
    requests = [conch_why(server, f"delayed-{number}") for number in range(0, 20, 4)]
    median = sorted(requests, key=lambda document: document["request"]["duration_ns"])[len(requests) // 2]
    assert median["request"]["causes"][0]["cause"] == "mates"
    assert "lower max_queue_delay_microseconds" in median["sentences"][0]
    pattern = r'Simulated, for "delayed": without max_queue_delay_microseconds .* instead of .*'
    assert re.fullmatch(pattern, median["sentences"][1])
    text = '20 batches of "delayed" have 1 request on average: they ran 100% because the queue delay was over'
    assert conch_why(server, "delayed")["sentences"][-1] == text


def test_uneven_arrivals(server: ConchProcess) -> None:
    """7318: few requests a second, with bursts among them, which wait for themselves."""
    with ThreadPoolExecutor(24) as pool:
        for _ in range(2):
            for _ in range(60):
                ask(server, "bursts", 10)
            list(pool.map(lambda _: ask(server, "bursts", 10), range(24)))
    explanation = conch_why(server, "p90", "--model", "bursts")
    assert explanation["percentile"]["causes"][0]["cause"] in ("ahead", "busy")
    assert 'Simulated, for "bursts": with a second instance ' in explanation["sentences"][1]


def test_high_concurrency(server: ConchProcess) -> None:
    """7492: batching is on, and 16 clients wait for each other: a larger batch takes as much longer as it is larger."""
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda _: ask(server, "crowded", 10), range(160)))
    explanation = conch_why(server, "p50", "--model", "crowded")
    assert explanation["percentile"]["causes"][0]["cause"] in ("ahead", "busy")
    assert 'Simulated, for "crowded": with a second instance ' in explanation["sentences"][1]
    assert any("because they were full" in sentence for sentence in explanation["sentences"])


def test_small_batches_of_sequences(server: ConchProcess) -> None:
    """7776: eight sequences fit into a batch, and most batches have few of them."""

    def sequence(number: int) -> None:
        for step in range(12):
            ask(server, "sequences", 5, sequence_id=number + 1, sequence_start=step == 0, sequence_end=step == 11)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(sequence, range(4)))
    sentence = conch_why(server, "sequences")["sentences"][-1]
    match = re.fullmatch(r'(\d+) batches of "sequences" have ([\d.]+) requests? on average: they ran (.*)', sentence)
    assert match is not None, sentence
    assert float(match[2]) < 4
    assert "because an instance was idle and the model has no queue delay" in match[3]


def test_a_request_of_a_sequence_waits_for_the_one_before(server: ConchProcess) -> None:
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(ask, server, "sequences", 200, "first", sequence_id=99, sequence_start=True)
        while "first" not in fetch_log(server.http, 60).names:
            pass
        ask(server, "sequences", 1, "second", sequence_id=99, sequence_end=True)
        first.result()
    causes = conch_why(server, "second")["request"]["causes"]
    assert (causes[0]["cause"], causes[0]["model"]) == ("sequence", "sequences")


def test_the_rate_limiter_holds_a_model_back(server: ConchProcess) -> None:
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(ask, server, "holder", 250, "holding")
        while "holding" not in fetch_log(server.http, 60).names:
            pass
        ask(server, "limited", 1, "held-back")
        first.result()
    explanation = conch_why(server, "held-back")
    assert (explanation["request"]["causes"][0]["cause"], explanation["request"]["causes"][0]["model"]) == (
        "limiter",
        "limited",
    )
    assert "--rate-limit-resource" in explanation["sentences"][0]
    log = fetch_log(server.http, 60)
    (hold,) = log.holds
    assert (log.names[hold["model"]], log.names[hold["holder"]]) == ("limited", "holder")


def test_a_generation(server: ConchProcess) -> None:
    answer = post(server, "/v1/completions", {"model": "llm", "prompt": "count to four", "max_tokens": 16})
    assert answer["choices"][0]["text"].split()[:2] == ["one", "two"]
    explained = conch_why(server, answer["id"])["request"]
    assert {cause["cause"] for cause in explained["causes"] if cause["model"] == "llm"} >= {"prefill", "decode"}
    assert sum(cause["duration_ns"] for cause in explained["causes"]) == explained["duration_ns"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", {"messages": [{"role": "user", "content": "count"}]}),
        ("messages", {"messages": [{"role": "user", "content": "count"}], "max_tokens": 9}),
        ("responses", {"input": "count"}),
        ("responses", {"input": "count", "store": False}),
    ],
)
def test_a_generation_is_found_by_the_id_of_its_answer(server: ConchProcess, path: str, body: dict[str, Any]) -> None:
    answer = post(server, f"/v1/{path}", {"model": "llm", **body})
    assert conch_why(server, answer["id"])["request"]["model"] == "llm"


def test_every_request_is_explained_without_gaps(server: ConchProcess) -> None:
    """Of what all the other tests have sent."""
    log = fetch_log(server.http, 600)
    explainer = Explainer(log)
    whole = dict(zip(log.requests["number"].tolist(), explainer.whole_ns().tolist(), strict=True))
    assert len(whole) > 300
    for number in whole:
        request = explainer.explain(number)
        assert request is not None
        parts = [*request.leaves()]
        assert all(before.end == after.start for before, after in pairwise(parts))
        assert sum(part.ns for part in parts) == request.ns == whole[number]
