"""The inputs of replayed requests."""

import json

import numpy as np
import pytest

from conch.base.errors import InvalidRequest
from conch.domain.events.log import EventLog
from conch.domain.request import InferRequest
from conch.domain.tensor import Tensor
from conch.measure.incidents.live_replay import (
    arrivals_of,
    client_models,
    is_language_model,
    kept_tensors,
    recorded_forms,
)
from conch.server.observability.incidents.payloads import Payloads


def test_recorded_shapes_are_read() -> None:
    forms = recorded_forms("A FP32 [1,16]; long name BYTES [2]; S INT64 []")
    assert [(form.name, form.datatype, form.shape) for form in forms] == [
        ("A", "FP32", (1, 16)),
        ("long name", "BYTES", (2,)),
        ("S", "INT64", ()),
    ]
    for text in ("", "A", "A FP32", "A FP32 [x]", "A NO [1]", "[1]"):
        assert recorded_forms(text) == []


@pytest.mark.parametrize(("detail", "kept"), [("whole", True), ("hashed", False)])
def test_kept_inputs_are_those_of_the_request(detail: str, kept: bool) -> None:
    payloads = Payloads(detail)  # type: ignore[arg-type]
    tensors = [
        Tensor.from_numpy("X", np.array([[1.5, 2]], np.float32)),
        Tensor.from_numpy("T", np.array(["ä".encode(), b"\xff"], np.object_)),
    ]
    payloads.keep(InferRequest("m", tensors))
    (document,) = json.loads(json.dumps(payloads.documents()))
    kept_inputs = kept_tensors(document)
    assert [(tensor.name, tensor.datatype, tensor.shape, bytes(tensor.data)) for tensor in kept_inputs] == (
        [(tensor.name, tensor.datatype, tensor.shape, bytes(tensor.data)) for tensor in tensors] if kept else []
    )


def test_redacted_and_damaged_inputs_are_not_used() -> None:
    payloads = Payloads("whole", ["X"])
    payloads.keep(InferRequest("m", [Tensor.from_numpy("X", np.array([1]))]))
    assert kept_tensors(payloads.documents()[0]) == []
    for damaged in ({}, {"inputs": 3}, {"inputs": [{"name": "X", "datatype": "FP32", "shape": "x", "base64": ""}]}):
        assert kept_tensors(damaged) == []


def test_clients_requests_are_replayed_by_their_arrival() -> None:
    rows = [
        {"number": 1, "model": "a", "received": 9, "parent": 0},
        {"number": 2, "model": "step", "received": 8, "parent": 1},
        {"number": 3, "model": "a", "received": 5, "parent": 0},
        {"number": 4, "model": "b", "received": 7, "parent": 0},
    ]
    log = EventLog.of_rows({"requests": rows})
    assert client_models(log) == ["a", "b"]
    assert arrivals_of(log, ["a", "b"])["number"].tolist() == [3, 4, 1]
    with pytest.raises(InvalidRequest, match="no request of a client"):
        arrivals_of(log, ["step"])


def test_language_models_are_known_by_their_tokens() -> None:
    rows: list[dict[str, int | str]] = [
        {"number": 1, "model": "m"},
        {"number": 2, "model": "words", "completion_tokens": 5},
    ]
    log = EventLog.of_rows({"requests": rows})
    assert [is_language_model(log, model) for model in ("m", "words")] == [False, True]
