"""What every backend owes a server, held against each that is installed: one server, the same questions to all."""

import json
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from tests.processes import command_lines
from tests.server.backends.makers import ALL, Maker, Rows, having
from tests.support.server_process import ConchProcess

# A batch waits for its four rows, however late one of the requests is.
BATCHING = "dynamic_batching { max_queue_delay_microseconds: 60000000 preferred_batch_size: [ 4 ] } max_batch_size: 4 "
ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)
TIMEOUT_S = 30


class ServedModel:
    """The server, and a client of its HTTP port; models are written into its repository and loaded by name."""

    def __init__(self, process: ConchProcess, repository: Path) -> None:
        self.process = process
        self.repository = repository
        self.client = httpclient.InferenceServerClient(process.http, concurrency=8)

    def load(self, write: Any, name: str, text: str = "") -> str:
        """Write a model and load it. Raises what the server answers."""
        write(self.repository / name, text)
        self.client.load_model(name)
        return name

    def ask(self, name: str, maker: Maker, rows: Rows) -> Rows:
        """Ask one question over a separate connection."""
        client = httpclient.InferenceServerClient(self.process.http)
        try:
            result = client.infer(name, [given(httpclient, maker, rows)])
        finally:
            client.close()
        answer: Rows = result.as_numpy(maker.output)
        return answer

    def ask_at_once(self, name: str, maker: Maker, questions: list[Rows]) -> list[Any]:
        """Ask all of them at the same time; an answer is an array or the error."""

        def answer(rows: Rows) -> Any:
            try:
                return self.ask(name, maker, rows)
            except InferenceServerException as error:
                return error

        with ThreadPoolExecutor(len(questions)) as threads:
            return list(threads.map(answer, questions))

    def counts(self, name: str) -> dict[str, int]:
        """Inferences and executions so far."""
        (model,) = self.client.get_inference_statistics(name)["model_stats"]
        return {key: int(model.get(key, 0)) for key in ("inference_count", "execution_count")}


def given(client: Any, maker: Maker, rows: Rows) -> Any:
    tensor = client.InferInput(maker.input, list(rows.shape), "FP32")
    tensor.set_data_from_numpy(np.ascontiguousarray(rows, np.float32))
    return tensor


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedModel]:
    repository = tmp_path_factory.mktemp("models")
    log = tmp_path_factory.mktemp("log") / "log"
    with ConchProcess(repository, "--model-control-mode=explicit", log=log) as process:
        yield ServedModel(process, repository)


def same(answer: Any, expected: Rows) -> None:
    assert isinstance(answer, np.ndarray), answer
    np.testing.assert_allclose(answer, expected, rtol=1e-5)


@pytest.mark.parametrize("maker", having("completes"))
def test_a_model_says_itself_what_it_takes_and_gives(served: ServedModel, maker: Maker) -> None:
    name = served.load(maker.write, f"told_{maker.backend}")
    metadata = served.client.get_model_metadata(name)
    assert metadata["inputs"] == [{"name": maker.input, "datatype": "FP32", "shape": [-1, 3]}]
    assert metadata["outputs"] == [{"name": maker.output, "datatype": "FP32", "shape": [-1, maker.width]}]
    assert served.client.get_model_config(name)["max_batch_size"] == 4
    same(served.ask(name, maker, ROWS), maker.answer(ROWS))


@pytest.mark.parametrize("maker", having("checks"))
@pytest.mark.parametrize(("datatype", "given", "complaint"), [("INT32", 3, "TYPE_INT32"), ("FP32", 4, "4")])
def test_a_configuration_that_the_model_contradicts_is_refused(
    served: ServedModel, maker: Maker, datatype: str, given: int, complaint: str
) -> None:
    with pytest.raises(InferenceServerException) as raised:
        served.load(maker.write, f"wrong_{datatype}_{given}_{maker.backend}", maker.declaration(datatype, given))
    assert complaint in raised.value.message()
    assert f"'{maker.input}'" in raised.value.message()


@pytest.mark.parametrize("maker", having("filename"))
@pytest.mark.parametrize("harm", ["missing", "corrupt"])
def test_an_invalid_model_file_is_named_and_harms_no_other_model(served: ServedModel, maker: Maker, harm: str) -> None:
    name = f"{harm}_{maker.backend}"
    maker.write(served.repository / name, maker.declaration())
    file = served.repository / name / "1" / maker.filename
    if harm == "missing":
        file.unlink()
    else:
        file.write_bytes(b"this is (no model")
    with pytest.raises(InferenceServerException) as raised:
        served.client.load_model(name)
    assert maker.filename in raised.value.message()
    assert not served.client.is_model_ready(name)
    # Repaired, it is served.
    served.load(maker.write, name, maker.declaration())
    same(served.ask(name, maker, ROWS), maker.answer(ROWS))


@pytest.mark.parametrize("maker", ALL)
def test_joined_requests_are_answered_as_single_ones(served: ServedModel, maker: Maker) -> None:
    name = served.load(maker.write, f"joined_{maker.backend}", BATCHING)
    parts = [ROWS[:1], ROWS[1:3], ROWS[3:]]
    for part, answer in zip(parts, served.ask_at_once(name, maker, parts), strict=True):
        same(answer, maker.answer(part))
    assert served.counts(name) == {"inference_count": 4, "execution_count": 1}


@pytest.mark.parametrize("maker", having("picky"))
def test_a_request_fails_without_those_it_was_joined_with(served: ServedModel, maker: Maker) -> None:
    assert maker.picky is not None
    name = served.load(maker.picky, f"picky_{maker.backend}", BATCHING)
    bad = np.full((1, 3), 99, np.float32)
    first, failed, last = served.ask_at_once(name, maker, [ROWS[:1], bad, ROWS[1:3]])
    same(first, maker.answer(ROWS[:1]))
    same(last, maker.answer(ROWS[1:3]))
    assert isinstance(failed, InferenceServerException)


@pytest.mark.parametrize("maker", having("variable"))
def test_dimensions_may_change_from_request_to_request_and_be_zero(served: ServedModel, maker: Maker) -> None:
    assert maker.variable is not None
    name = served.load(maker.variable, f"variable_{maker.backend}")
    for shape in ((1, 2), (2, 5), (1, 0), (3, 1)):
        rows = np.ones(shape, np.float32)
        answer = served.ask(name, maker, rows)
        assert answer.shape == shape
        same(answer, maker.answer(rows))


@pytest.mark.parametrize("maker", having("scalar"))
def test_a_scalar_is_one_element(served: ServedModel, maker: Maker) -> None:
    assert maker.scalar is not None
    name = served.load(maker.scalar, f"scalar_{maker.backend}")
    assert served.client.get_model_metadata(name)["inputs"][0]["shape"] == [1]
    answer = served.ask(name, maker, np.array([7], np.float32))
    assert (answer.shape, answer.tolist()) == ((1,), [14])


@pytest.mark.parametrize("maker", ALL)
def test_two_instances_answer_at_once(served: ServedModel, maker: Maker) -> None:
    name = served.load(
        maker.write, f"two_{maker.backend}", "max_batch_size: 4 instance_group { count: 2 kind: KIND_CPU }"
    )
    questions = [ROWS[:1] + number for number in range(24)]
    for rows, answer in zip(questions, served.ask_at_once(name, maker, questions), strict=True):
        same(answer, maker.answer(rows))


@pytest.mark.parametrize("maker", ALL)
def test_a_client_that_disconnects_affects_no_other(served: ServedModel, maker: Maker) -> None:
    name = served.load(maker.write, f"left_{maker.backend}", BATCHING.replace("60000000", "300000"))
    with grpcclient.InferenceServerClient(served.process.grpc) as client:
        left, stayed = threading.Event(), threading.Event()
        kept: list[Any] = []

        def keep(result: Any, error: Any) -> None:
            kept.append(error or result.as_numpy(maker.output))
            stayed.set()

        going = client.async_infer(name, [given(grpcclient, maker, ROWS[:1])], lambda result, error: left.set())
        client.async_infer(name, [given(grpcclient, maker, ROWS[1:])], keep)
        going.cancel()
        assert left.wait(TIMEOUT_S)
        assert stayed.wait(TIMEOUT_S)
    same(kept[0], maker.answer(ROWS[1:]))


@pytest.mark.parametrize("maker", ALL)
def test_warm_up_is_run_and_not_counted(served: ServedModel, maker: Maker) -> None:
    values = f'inputs {{ key: "{maker.input}" value {{ data_type: TYPE_FP32 dims: [ 3 ] zero_data: true }} }}'
    text = f'{maker.declaration()} model_warmup {{ name: "zeros" batch_size: 2 count: 3 {values} }}'
    name = served.load(maker.write, f"warm_{maker.backend}", text)
    assert served.counts(name) == {"inference_count": 0, "execution_count": 0}
    same(served.ask(name, maker, ROWS), maker.answer(ROWS))


@pytest.mark.parametrize("maker", ALL)
def test_what_was_answered_is_counted(served: ServedModel, maker: Maker) -> None:
    name = served.load(maker.write, f"counted_{maker.backend}", "max_batch_size: 4")
    for rows in (ROWS[:1], ROWS):
        served.ask(name, maker, rows)
    with pytest.raises(InferenceServerException):
        served.ask(name, maker, ROWS[:, :2])
    metrics = served.process.metrics()
    for metric, value in [("request_success", 2), ("count", 5), ("exec_count", 2)]:
        assert f'nv_inference_{metric}{{model="{name}",version="1"}} {value}' in metrics
    statistics = served.client.get_inference_statistics(name)["model_stats"][0]["inference_stats"]
    for duration in ("queue", "compute_input", "compute_infer", "compute_output"):
        assert int(statistics[duration]["count"]) == 2


@pytest.mark.parametrize("maker", ALL)
def test_a_reload_serves_on_and_an_unload_leaves_nothing(served: ServedModel, maker: Maker) -> None:
    name = f"again_{maker.backend}"
    left_behind: list[tuple[int, int]] = []
    for _ in range(3):
        served.load(maker.write, name, "max_batch_size: 4")
        served.client.load_model(name, config=json.dumps(served.client.get_model_config(name)))
        same(served.ask(name, maker, ROWS), maker.answer(ROWS))
        served.client.unload_model(name)
        until_gone(served, name)
        left_behind.append(held(served, name))
    # The first time, a library starts what it keeps.
    assert left_behind[1] == left_behind[2]
    shutil.rmtree(served.repository / name)


def until_gone(served: ServedModel, name: str) -> None:
    """Wait for the end of a model and of its processes."""
    deadline = time.monotonic() + TIMEOUT_S
    while served.client.is_model_ready(name) or held(served, name)[1]:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def held(served: ServedModel, name: str) -> tuple[int, int]:
    """Open files below the model's folder, and child processes that are called like it."""
    process = psutil.Process(served.process.process.pid)
    maps = [map.path for map in process.memory_maps() if f"/{name}/" in map.path]
    files = [file.path for file in process.open_files() if f"/{name}/" in file.path]
    return len(maps) + len(files), sum(name in " ".join(line) for _, line in command_lines(process.pid))
