"""Inputs of requests in bundles: hashes, samples, and whole ones without secrets."""

import base64
import json

import numpy as np

from conch.domain.request import InferRequest
from conch.domain.tensor import Tensor
from conch.server.observability.incidents.payloads import MAX_BYTES, MAX_REQUEST_BYTES, Payloads


def request(**arrays: object) -> InferRequest:
    tensors = [Tensor.from_numpy(name, np.asarray(array)) for name, array in arrays.items()]
    return InferRequest("m", tensors, parameters={"temperature": 1, "api_key": "k1"})


def test_hashes_show_only_which_inputs_are_equal() -> None:
    payloads, other = Payloads("hashed"), Payloads("hashed")
    for values in ([1.0, 2.0], [1.0, 2.0], [1.0, 3.0]):
        payloads.keep(request(X=np.array(values, np.float32)))
    other.keep(request(X=np.array([1.0, 2.0], np.float32)))
    inputs = [document["inputs"][0] for document in payloads.documents()]
    assert inputs[0] == inputs[1] != inputs[2]
    assert (inputs[0]["datatype"], inputs[0]["shape"]) == ("FP32", [2])
    assert other.documents()[0]["inputs"][0]["hash"] != inputs[0]["hash"]  # keyed
    assert "base64" not in json.dumps(payloads.documents())


def test_whole_requests_lack_what_is_secret_in_nested_json() -> None:
    arguments = json.dumps({"user": {"password": "p1"}, "inner": json.dumps({"secret": "s1"}), "city": "Bern"})
    payloads = Payloads("whole", ["street", "DIARY"])
    payloads.keep(
        request(
            TEXT=np.array([arguments.encode(), b"plain", b"\xff", b'[{"street": "x1"}]'], np.object_),
            DIARY=np.array([b"d1"], np.object_),
            X=np.array([7], np.int32),
        )
    )
    (document,) = payloads.documents()
    text = json.dumps(document)
    assert not [secret for secret in ("k1", "p1", "s1", "x1", "d1") if secret in text.replace("base64", "")]
    tensor, diary, numbers = document["inputs"]
    assert tensor["data"][1:3] == ["plain", {"base64": "/w=="}]
    assert json.loads(tensor["data"][0])["city"] == "Bern"
    assert diary["data"] == "[redacted]"
    assert base64.b64decode(numbers["base64"]) == np.array([7], np.int32).tobytes()
    assert document["parameters"] == {"temperature": 1, "api_key": "[redacted]"}


def test_one_of_a_hundred_is_sampled() -> None:
    payloads = Payloads("sampled")
    for number in range(250):
        payloads.keep(request(X=np.array([number])))
    assert [np.frombuffer(base64.b64decode(document["inputs"][0]["base64"]), np.int64)[0]
            for document in payloads.documents()] == [0, 100, 200]  # fmt: skip


def test_memory_is_bounded_and_large_requests_are_hashed() -> None:
    payloads = Payloads("whole")
    large = np.zeros(MAX_REQUEST_BYTES, np.uint8)
    for _ in range(MAX_BYTES // MAX_REQUEST_BYTES + 3):
        payloads.keep(request(X=large))
    assert len(payloads.documents()) == MAX_BYTES // MAX_REQUEST_BYTES
    payloads.keep(request(X=np.zeros(MAX_REQUEST_BYTES + 1, np.uint8)))
    assert "hash" in payloads.documents()[-1]["inputs"][0]
