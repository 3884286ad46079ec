"""The inputs of replayed requests."""

import json

import numpy as np
import pytest

from conch.base.errors import InvalidRequest
from conch.domain.events.log import EventLog
from conch.domain.request import InferRequest
from conch.domain.tensor import Tensor
from conch.measure.incidents.live_replay import arrivals_of, client_models, kept_tensors, recorded_forms, refusal
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
    found = kept_tensors(document)
    assert [(tensor.name, tensor.datatype, tensor.shape, bytes(tensor.data)) for tensor in found] == (
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


@pytest.mark.parametrize(
    ("config", "stand_in", "why"),
    [
        ({}, False, ""),
        (None, False, ""),
        ({}, True, ""),
        (None, True, "the bundle does not have its configuration"),
        ({"ensemble_scheduling": {"step": [{}]}}, False, ""),
        ({"ensemble_scheduling": {"step": [{}]}}, True, "it is an ensemble"),
        ({"sequence_batching": {"x": 1}}, False, "its requests are of sequences"),
    ],
)
def test_what_cannot_be_sent_is_said(config: dict[str, object] | None, stand_in: bool, why: str) -> None:
    times = {"started": 1, "input_done": 2, "infer_done": 3, "released": 4}
    batches = [{"number": 1, "model": "m", "size": 1, **times}]
    log = EventLog.of_rows({"requests": [{"number": 1, "model": "m"}], "batches": batches})
    assert refusal(log, "m", config, stand_in=stand_in) == why
    language = EventLog.of_rows({"requests": [{"number": 1, "model": "m", "completion_tokens": 5}]})
    assert refusal(language, "m", config, stand_in=stand_in) == "it is a language model"


def test_a_model_that_executed_nothing_has_no_stand_in() -> None:
    log = EventLog.of_rows({"requests": [{"number": 1, "model": "m"}]})
    assert refusal(log, "m", {}, stand_in=True) == "the bundle has none of its executions"
