"""Bidirectional streams with the official client: decoupled models, errors in band, four streams at once."""

import queue
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.support.server_process import ConchProcess


class Stream:
    """A client with one open stream, its responses in a queue."""

    def __init__(self, url: str) -> None:
        self.client = triton.InferenceServerClient(url)
        self.answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self.client.start_stream(lambda result, error: self.answers.put((result, error)))

    def ask(self, model: str, value: np.ndarray[Any, Any], **options: Any) -> None:
        kinds = {"i": "INT32", "O": "BYTES"}
        tensor = triton.InferInput("INPUT0", list(value.shape), kinds[value.dtype.kind])
        tensor.set_data_from_numpy(value)
        self.client.async_stream_infer(model, [tensor], **options)

    def next(self) -> tuple[Any, Any]:
        return self.answers.get(timeout=60)

    def value(self) -> int:
        result, error = self.next()
        assert error is None, error
        return int(result.as_numpy("OUTPUT0")[0])


@contextmanager
def stream(conch: ConchProcess) -> Iterator[Stream]:
    stream = Stream(conch.grpc)
    try:
        yield stream
    finally:
        stream.client.stop_stream()
        stream.client.close()


def final(result: Any) -> bool:
    return bool(result.get_response().parameters["triton_final_response"].bool_param)


@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_decoupled_model_gives_any_number_of_responses(conch: ConchProcess, count: int) -> None:
    with stream(conch) as opened:
        opened.ask("repeat", np.array([count], np.int32), request_id="r", enable_empty_final_response=True)
        assert [opened.value() for _ in range(count)] == list(range(count))
        result, error = opened.next()
        assert error is None
        response = result.get_response()
        assert (response.id, len(response.outputs), final(result)) == ("r", 0, True)


def test_without_asking_for_it_the_empty_final_response_stays_away(conch: ConchProcess) -> None:
    with stream(conch) as opened:
        opened.ask("repeat", np.array([2], np.int32))
        opened.ask("repeat", np.array([1], np.int32), request_id="last")
        values = [opened.value() for _ in range(3)]
        assert sorted(values) == [0, 0, 1]
        assert opened.answers.empty()


def test_an_ordinary_model_answers_once_and_finally(conch: ConchProcess) -> None:
    with stream(conch) as opened:
        for i in range(10):
            opened.ask("identity_int32", np.array([i], np.int32), request_id=str(i))
        for i in range(10):
            result, error = opened.next()
            assert error is None
            assert (result.get_response().id, final(result)) == (str(i), True)


def test_errors_come_in_band_and_the_stream_stays_open(conch: ConchProcess) -> None:
    with stream(conch) as opened:
        opened.ask("nope", np.array([1], np.int32), request_id="a")
        _, error = opened.next()
        assert "Request for unknown model: 'nope' is not found" in str(error)
        opened.ask("faulty", np.array([b"error"], dtype=object), request_id="b")
        _, error = opened.next()
        assert "custom err" in str(error)
        opened.ask("identity_int32", np.array([7], np.int32))
        assert opened.value() == 7


def test_four_streams_at_once(conch: ConchProcess) -> None:
    def run(number: int) -> int:
        with stream(conch) as opened:
            for i in range(50):
                opened.ask("repeat", np.array([4], np.int32), request_id=f"{number}-{i}")
            return sum(opened.value() for _ in range(200))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, range(4))) == [50 * (0 + 1 + 2 + 3)] * 4


def test_a_decoupled_model_cannot_be_asked_without_a_stream(conch: ConchProcess) -> None:
    client = triton.InferenceServerClient(conch.grpc)
    tensor = triton.InferInput("INPUT0", [1], "INT32")
    tensor.set_data_from_numpy(np.zeros(1, np.int32))
    with pytest.raises(InferenceServerException, match="doesn't support models with decoupled transaction policy"):
        client.infer("repeat", [tensor])
    client.close()
