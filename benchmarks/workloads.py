"""The table of works: which models, which question, over which wire, how many at once, and what counts."""

import json
from dataclasses import dataclass
from functools import partial

import numpy as np

from benchmarks.payloads import Array, Question, Wire
from benchmarks.repositories import EXAMPLES, Models, example_ensemble, own

EXAMPLE_IMAGE = EXAMPLES.parent / "images" / "plate.jpg"


@dataclass(frozen=True)
class LoadWork:
    """Put one question again and again from `in_flight` connections, each with one request at a time.

    The figure that counts is the median latency where only one is in flight, the bandwidth of input tensors where
    `bandwidth` says so, and else the rate of answers. `messages` is how many questions one stream carries.
    """

    name: str
    models: Models
    question: Question
    wire: Wire
    in_flight: int
    messages: int = 1
    bandwidth: bool = False


@dataclass(frozen=True)
class StartWork:
    """Start the server on `models`, ask `question` once; the time until ready and the memory held then count."""

    name: str
    models: Models
    question: Question


Work = LoadWork | StartWork


def all_works() -> list[Work]:
    """Return every work in the order of the table. Works on the same models stand together and share their servers."""
    return [*_identity(), *_large(), *_batching(), *_ensemble(), *_pipeline(), *_start()]


def _identity() -> list[Work]:
    models = own(identity="identity")
    question = _echo("identity", _vector(batched=True))
    unary = [(wire, count) for wire in (Wire.JSON, Wire.BINARY, Wire.GRPC) for count in (1, 16)]
    return [
        *(LoadWork(f"identity-{wire}-{count}", models, question, wire, count) for wire, count in unary),
        LoadWork("identity-stream-100", models, question, Wire.STREAM, in_flight=1, messages=100),
        LoadWork(
            "unbatched-binary-16",
            own(identity="identity_unbatched"),
            _echo("identity", _vector(batched=False)),
            Wire.BINARY,
            in_flight=16,
        ),
    ]


def _large() -> list[Work]:
    models = own(identity="identity_image")
    question = _echo("identity", np.random.default_rng(7).random((1, 3, 640, 640), dtype=np.float32))
    return [
        LoadWork(f"image-{wire}-4", models, question, wire, in_flight=4, bandwidth=True)
        for wire in (Wire.BINARY, Wire.GRPC)
    ]


def _batching() -> list[Work]:
    sleep = _echo("sleep", _vector(batched=True))
    busy = _echo("busy", _vector(batched=False))
    return [
        LoadWork("sleep-2ms-binary-64", own(sleep="sleep"), sleep, Wire.BINARY, in_flight=64),
        LoadWork("busy-5ms-binary-8", own(busy="busy"), busy, Wire.BINARY, in_flight=8),
    ]


def _ensemble() -> list[Work]:
    models = own(chain="chain", first="identity", second="identity", third="identity")
    question = _echo("chain", _vector(batched=True))
    return [LoadWork(f"ensemble-{wire}-16", models, question, wire, in_flight=16) for wire in (Wire.BINARY, Wire.GRPC)]


def _pipeline() -> list[Work]:
    models = example_ensemble("detect")
    photograph = np.array([[EXAMPLE_IMAGE.read_bytes()]], dtype=np.object_)
    question = Question("detect", {"RAW_IMAGE": photograph}, "DETECTION_RESULTS", check=_check_detections)
    return [LoadWork(f"detect-binary-{count}", models, question, Wire.BINARY, count) for count in (1, 4)]


def _start() -> list[Work]:
    return [StartWork("start-1", own(identity="identity"), _echo("identity", _vector(batched=True)))]


def _check_detections(results: Array) -> None:
    """Require what holds of any detector that sees the example image: there is a defect in it, somewhere inside."""
    assert results.shape == (1, 1), f"expected one result, got shape {results.shape}"
    detections = json.loads(results[0, 0])
    assert detections, "no defect found in the example image"
    for detection in detections:
        left, top, right, bottom = detection["bbox"]
        assert left < right, f"empty box {detection}"
        assert top < bottom, f"empty box {detection}"


def _vector(*, batched: bool) -> Array:
    values = np.linspace(-1, 1, 16, dtype=np.float32)
    return values.reshape(1, 16) if batched else values


def _echo(model: str, array: Array) -> Question:
    """Return the question to an identity model, to which the only right answer is what was sent."""
    return Question(model, {"INPUT0": array}, "OUTPUT0", check=partial(np.testing.assert_array_equal, array))
