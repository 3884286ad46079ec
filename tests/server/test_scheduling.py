"""What the scheduler does to requests and what it counts, on a running server; the expectations are Triton 2.51's."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from tests.support.models import tensor, write_ensemble, write_python
from tests.support.server_process import ConchProcess

TIMEOUT_S = 30
NUMBERS = f"input {tensor('INPUT0', 'INT32', 1)} output {tensor('OUTPUT0', 'INT32', 1)}"
GATED = """
while os.path.exists({0!r}):
    open({0!r} + ".taken", "w").close()
    time.sleep(0.002)
with open({0!r} + ".executed", "a") as book:
    book.write(str(request.inputs()[0].as_numpy().ravel()[0]) + "\\n")
return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())])
"""
ANSWERS = """
number = int(request.inputs()[0].as_numpy().ravel()[0])
if number == -1:
    return pb_utils.InferenceResponse(error=pb_utils.TritonError("no such luck", pb_utils.TritonError.NOT_FOUND))
if number == -2:
    raise RuntimeError("boom")
tensors = [pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())]
if number == 1:
    tensors.append(pb_utils.Tensor("MORE", request.inputs()[0].as_numpy()))
return pb_utils.InferenceResponse(tensors)
"""
NAMES = """
names = ",".join(sorted(tensor.name() for tensor in request.inputs()))
return pb_utils.InferenceResponse([pb_utils.Tensor("NAMES", np.array([names.encode()], dtype=object))])
"""


class Server:
    """The server, and threads that ask it."""

    def __init__(self, process: ConchProcess, folder: Path, pool: ThreadPoolExecutor) -> None:
        self.process = process
        self._folder = folder
        self._pool = pool

    def ask(self, model: str, *numbers: int, outputs: tuple[str, ...] = (), **parameters: Any) -> tuple[int, Any]:
        """Return status and document of one request for a batch of numbers."""
        given = {"name": "INPUT0", "datatype": "INT32", "shape": [len(numbers), 1], "data": numbers}
        if model not in BATCHED:
            given["shape"] = [len(numbers)]
        body: dict[str, Any] = {"inputs": [given], "parameters": parameters}
        if outputs:
            body["outputs"] = [{"name": name} for name in outputs]
        url = f"http://{self.process.http}/v2/models/{model}/infer"
        try:
            with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=TIMEOUT_S) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def soon(self, model: str, *numbers: int, **fields: Any) -> "Future[tuple[int, Any]]":
        """Ask in a thread."""
        return self._pool.submit(self.ask, model, *numbers, **fields)

    def executed(self, model: str) -> list[int]:
        """Return the first number of each request that a gated model has executed, in that order."""
        return [int(line) for line in (self._folder / f"{model}.shut.executed").read_text().splitlines()]

    def pending(self, model: str) -> int:
        return self.metric("nv_inference_pending_request_count", model)

    def metric(self, name: str, model: str, label: str = "") -> int:
        start = f'{name}{{model="{model}",{label}'
        (line,) = [line for line in self.process.metrics().splitlines() if line.startswith(start)]
        return int(float(line.split()[-1]))

    def statistics(self, model: str) -> dict[str, Any]:
        with urllib.request.urlopen(
            f"http://{self.process.http}/v2/models/{model}/stats", timeout=TIMEOUT_S
        ) as response:
            (row,) = json.load(response)["model_stats"]
        return dict(row)

    def batches(self, model: str) -> dict[int, int]:
        """Return how often each batch size was executed."""
        rows = self.statistics(model)["batch_stats"]
        return {statistics["batch_size"]: statistics["compute_infer"]["count"] for statistics in rows}

    def counts(self, model: str) -> dict[str, int]:
        """Return what of the statistics is not 0."""
        statistics = self.statistics(model)
        counts = {name: row["count"] for name, row in statistics["inference_stats"].items()}
        counts |= {"inferences": statistics["inference_count"], "executions": statistics["execution_count"]}
        for reason in ("REJECTED", "CANCELED", "BACKEND", "OTHER"):
            counts[reason] = self.metric("nv_inference_request_failure", model, f'reason="{reason}"')
        return {name: count for name, count in counts.items() if count}

    @contextmanager
    def stuck(self, model: str) -> Iterator["Future[tuple[int, Any]]"]:
        """Have a model execute one request for the time of the block; returns its answer."""
        gate = self._folder / f"{model}.shut"
        gate.touch()
        try:
            answer = self.soon(model, 0)
            until(gate.with_suffix(".shut.taken").exists)
            yield answer
        finally:
            gate.unlink()


BATCHED = {"preferred", "bounded", "urgent", "gated"}


def until(condition: Callable[[], bool]) -> None:
    deadline = monotonic() + TIMEOUT_S
    while not condition():
        assert monotonic() < deadline
        sleep(0.005)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("scheduling")
    models = folder / "models"

    def gated(name: str, config: str) -> None:
        write_python(models, name, f"{NUMBERS} {config}", GATED.format(str(folder / f"{name}.shut")))

    # Nothing that waits for its delay is executed within a test.
    delayed = "preferred_batch_size: [ 2, 6 ] max_queue_delay_microseconds: 600000000"
    gated("preferred", f"max_batch_size: 8 dynamic_batching {{ {delayed} }}")
    gated("bounded", "max_batch_size: 1 dynamic_batching { default_queue_policy { max_queue_size: 3 } }")
    gated("urgent", "max_batch_size: 1 dynamic_batching { priority_levels: 3 default_priority_level: 2 }")
    gated("gated", "max_batch_size: 4 dynamic_batching { }")
    more = f"{NUMBERS} output {tensor('MORE', 'INT32', 1)}"
    write_python(models, "answers", more, ANSWERS)
    write_python(models, "cached", f"{NUMBERS} response_cache {{ enable: true }}", ANSWERS)
    optional = tensor("Y", "INT32", 1, extra="optional: true")
    write_python(
        models,
        "names",
        f"input {tensor('X', 'INT32', 1)} input {optional} output {tensor('NAMES', 'STRING', 1)}",
        NAMES,
    )
    given = f"input {tensor('INPUT0', 'INT32', 1)}"
    first = "answers", {"INPUT0": "INPUT0"}, {"OUTPUT0": "x", "MORE": "y"}
    write_ensemble(
        models, "pipeline", given, f"output {tensor('NAMES', 'STRING', 1)} output {tensor('y', 'INT32', 1)}",
        first, ("names", {"X": "x", "Y": "y"}, {"NAMES": "NAMES"}),
    )  # fmt: skip
    flags = ["--cache-config=local,size=1048576"]
    with (
        ConchProcess(models, *flags, log=folder / "log") as process,
        ThreadPoolExecutor(16) as pool,
    ):
        yield Server(process, folder, pool)


@pytest.mark.parametrize(
    ("sizes", "executed"),
    [
        ((2,), {2: 1}),
        ((6,), {6: 1}),
        ((7,), {7: 1}),
        ((8,), {8: 1}),
        ((3, 7), {3: 1, 7: 1}),
        ((1, 5), {6: 1}),
        ((1, 7), {1: 1, 7: 1}),
        ((5, 4, 2), {5: 1, 6: 1}),
    ],
)
def test_what_reaches_the_largest_preferred_size_or_would_jump_over_it_runs_at_once(
    server: Server, sizes: tuple[int, ...], executed: dict[int, int]
) -> None:
    before = server.batches("preferred")
    answers = []
    for size in sizes:
        answers.append(server.soon("preferred", *range(size)))
        waits = sum(sizes[: len(answers)]) not in (2, 6) and len(answers) < len(sizes)
        if waits and len(answers) == 1:
            until(lambda: server.pending("preferred") == 1)
        elif waits:
            until(answers[0].done)
            until(lambda: server.pending("preferred") == 1)
    for answer in answers:
        assert answer.result(TIMEOUT_S)[0] == 200
    after = server.batches("preferred")
    assert {size: after[size] - before.get(size, 0) for size in after if after[size] != before.get(size, 0)} == executed


def test_pending_counts_all_that_wait_and_a_bounded_queue_refuses_the_next(server: Server) -> None:
    for number in range(60):  # so that requests are sent ahead
        server.ask("bounded", number)
    with server.stuck("bounded") as executing:
        assert server.pending("bounded") == 0
        waiting = []
        for number in range(1, 4):
            waiting.append(server.soon("bounded", number))
            until(lambda number=number: server.pending("bounded") == number)  # type: ignore[misc]
        status, error = server.ask("bounded", 4)
        assert (status, error["error"]) == (503, "[request id: <id_unknown>] Exceeds maximum queue size")
        assert server.pending("bounded") == 3
    assert [answer.result(TIMEOUT_S)[0] for answer in (executing, *waiting)] == [200] * 4
    assert server.pending("bounded") == 0
    assert server.counts("bounded")["REJECTED"] == 1


def test_priorities_0_and_out_of_range_are_the_default(server: Server) -> None:
    with server.stuck("urgent") as executing:
        answers = [executing]
        for number, priority in enumerate((9, 3, 0, 1, 2), 1):
            answers.append(server.soon("urgent", number, priority=priority))
            until(lambda number=number: server.pending("urgent") == number)  # type: ignore[misc]
    for number, answer in enumerate(answers):
        status, document = answer.result(TIMEOUT_S)
        assert (status, document["outputs"][0]["data"]) == (200, [number])
    assert server.executed("urgent") == [0, 4, 1, 3, 5, 2]


def test_what_each_end_of_a_request_counts(server: Server) -> None:
    once = {"success": 1, "queue": 1, "compute_input": 1, "compute_infer": 1, "compute_output": 1}
    assert server.ask("answers", 0)[0] == 200
    expected = {**once, "inferences": 1, "executions": 1}
    assert server.counts("answers") == expected
    assert server.ask("answers", 0, 0)[0] == 400  # refused before it was scheduled
    assert server.ask("answers", 0, outputs=("NOPE",))[0] == 400
    assert server.counts("answers") == expected
    assert server.ask("answers", -1) == (404, {"error": "no such luck"})
    expected |= {"fail": 1, "executions": 2, "BACKEND": 1}
    assert server.counts("answers") == expected
    assert server.ask("answers", -2)[0] == 500
    expected |= {"fail": 2, "executions": 3, "BACKEND": 2}
    assert server.counts("answers") == expected


def test_a_batch_counts_once_as_an_execution_and_its_requests_each(server: Server) -> None:
    assert server.ask("gated", 1, 2, 3)[0] == 200
    with server.stuck("gated") as executing:
        answers = [executing, *(server.soon("gated", number) for number in range(4))]
        until(lambda: server.pending("gated") == 4)
    for answer in answers:
        assert answer.result(TIMEOUT_S)[0] == 200
    counts = server.counts("gated")
    assert (counts["success"], counts["inferences"], counts["executions"]) == (6, 8, 3)
    assert server.batches("gated") == {1: 1, 3: 1, 4: 1}


def test_an_answer_from_the_cache_is_not_an_inference(server: Server) -> None:
    for _ in range(2):
        assert server.ask("cached", 7)[0] == 200
    once = {"compute_input": 1, "compute_infer": 1, "compute_output": 1, "inferences": 1, "executions": 1}
    assert server.counts("cached") == {**once, "success": 2, "queue": 2, "cache_hit": 1, "cache_miss": 1}


def test_an_ensemble_passes_on_what_there_is_and_runs_what_is_asked_for(server: Server) -> None:
    position = {"sequence_id": 0, "sequence_start": False, "sequence_end": False}

    def answer(number: int, **fields: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        status, document = server.ask("pipeline", number, **fields)
        assert status == 200, document
        return {output["name"]: output["data"] for output in document["outputs"]}, document["parameters"]

    assert answer(1) == ({"NAMES": ["X,Y"], "y": [1]}, position)
    assert answer(2) == ({"NAMES": ["X"]}, position)
    executions = server.counts("names")["executions"]
    moved = {"sequence_id": "s", "sequence_start": True, "sequence_end": True}
    assert answer(1, outputs=("y",), **moved) == ({"y": [1]}, moved)
    assert server.counts("names")["executions"] == executions == 2
    assert server.ask("pipeline", -1)[0] == 404
    counts = server.counts("pipeline")
    assert (counts["success"], counts["fail"], counts["OTHER"]) == (3, 1, 1)
    assert counts["compute_infer"] == counts["queue"] == counts["executions"] == 3
    assert server.pending("pipeline") == 0
