"""The table of works: which models, which question, over which wire, how many at once, and what counts."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from benchmarks.harness.alone import densenet_image, densenet_scores
from benchmarks.harness.figures import ALONE, Target
from benchmarks.harness.payloads import Array, Question, Wire
from benchmarks.harness.repositories import EXAMPLES, Models, example, example_ensemble, own

EXAMPLE_IMAGE = EXAMPLES.parent / "images" / "plate.jpg"


@dataclass(frozen=True)
class LoadWork:
    """Put one question again and again from `in_flight` connections, each with one request at a time.

    The figure that counts is that of the first of the `targets`; without any it is the median latency where only one is
    in flight, and else the rate of answers. `messages` is how many questions one stream carries, `alone` what
    `benchmarks.harness.alone` calls the same work in one process without a server, if there is such a thing.
    """

    name: str
    models: Models
    question: Question
    wire: Wire
    in_flight: int
    messages: int = 1
    targets: Sequence[Target] = ()
    alone: str | None = None

    @property
    def counts(self) -> str:
        """Name of the figure that counts."""
        if self.targets:
            return self.targets[0].figure
        return "median latency" if self.in_flight == 1 else "rate"


@dataclass(frozen=True)
class StartWork:
    """Start the server on `models`, ask `question` once; the time until ready and the memory held then count.

    `rounds` is how often at the most, where starting takes long.
    """

    name: str
    models: Models
    question: Question
    targets: Sequence[Target]
    rounds: int


Work = LoadWork | StartWork


def all_works() -> list[Work]:
    """Return every work in the order of the table. Works on the same models stand together and share their servers."""
    return [
        *_identity(),
        *_large(),
        *_batching(),
        *_cache(),
        *_ensemble(),
        *_scripted(),
        *_sequences(),
        *_decoupled(),
        *_pipeline(),
        *_densenet(),
        *_openvino(),
        *_start(),
    ]


def _identity() -> list[Work]:
    models = own(identity="identity")
    question = echo("identity", vector(batched=True))
    targets = {
        "identity-json-1": [Target("median latency", 0.5)],
        "identity-json-16": [Target("rate", 1.6), Target("cpu", 0.6)],
        "identity-binary-16": [Target("rate", 1.6), Target("cpu", 0.6)],
        "identity-grpc-16": [Target("rate", 1.0)],
    }
    unary = [(f"identity-{wire}-{n}", wire, n) for wire in (Wire.JSON, Wire.BINARY, Wire.GRPC) for n in (1, 16)]
    return [
        *(LoadWork(name, models, question, wire, n, targets=targets.get(name, ())) for name, wire, n in unary),
        LoadWork("identity-stream-100", models, question, Wire.STREAM, 1, messages=100, targets=[Target("rate", 1.0)]),
        LoadWork(
            "unbatched-binary-16",
            own(identity="identity_unbatched"),
            echo("identity", vector(batched=False)),
            Wire.BINARY,
            in_flight=16,
        ),
    ]


def _large() -> list[Work]:
    models = own(identity="identity_image")
    question = echo("identity", np.random.default_rng(7).random((1, 3, 640, 640), dtype=np.float32))
    bounds = {Wire.BINARY: 1.3, Wire.GRPC: 1.0, Wire.SHARED_HTTP: 1.2, Wire.SHARED_GRPC: 1.2}
    return [
        LoadWork(f"image-{wire}-4", models, question, wire, in_flight=4, targets=[Target("bandwidth", bound)])
        for wire, bound in bounds.items()
    ]


def _batching() -> list[Work]:
    sleep, busy = echo("sleep", vector(batched=True)), echo("busy", vector(batched=False))
    quick = [Target("rate", 1.5), Target("cpu", 0.6)]
    return [
        LoadWork("sleep-2ms-binary-64", own(sleep="sleep"), sleep, Wire.BINARY, in_flight=64, targets=quick),
        LoadWork("busy-5ms-binary-8", own(busy="busy"), busy, Wire.BINARY, in_flight=8, targets=[Target("rate", 1.0)]),
    ]


def _cache() -> list[Work]:
    """The same question again and again, so that all answers but the first are hits."""
    image = np.random.default_rng(7).random((1, 3, 224, 224), dtype=np.float32)
    works = [("hit", "cached", vector(batched=True)), ("hit-image", "cached_image", image)]
    target = [Target("median latency", 0.5)]
    return [
        LoadWork(f"cache-{name}-{wire}-1", own(cached=model), echo("cached", array), wire, in_flight=1, targets=target)
        for name, model, array in works
        for wire in (Wire.BINARY, Wire.GRPC)
    ]


def _ensemble() -> list[Work]:
    models = own(chain="chain", first="identity", second="identity", third="identity")
    question = echo("chain", vector(batched=True))
    targets = [Target("rate", 1.5), Target("cpu", 0.6)]
    return [
        LoadWork(f"ensemble-{wire}-16", models, question, wire, in_flight=16, targets=targets)
        for wire in (Wire.BINARY, Wire.GRPC)
    ]


def _scripted() -> list[Work]:
    models = own(scripted="chain_bls", first="identity", second="identity", third="identity")
    question = echo("scripted", vector(batched=True))
    return [LoadWork("chain-bls-8", models, question, Wire.BINARY, in_flight=8, targets=[Target("rate", 2.0)])]


def _sequences() -> list[Work]:
    """The sum of ten requests, of 32 sequences at once; one begins where another has ended."""
    array, length = vector(batched=True), 10
    question = Question(
        "running_sum",
        {"INPUT0": array},
        "OUTPUT0",
        check=partial(np.testing.assert_allclose, length * array, rtol=1e-5),
        sequence=length,
    )
    models = own(running_sum="running_sum")
    return [LoadWork("sequence-binary-32", models, question, Wire.BINARY, 32, targets=[Target("rate", 1.2)])]


def _decoupled() -> list[Work]:
    question = replace(echo("repeat", vector(batched=False)), responses=1000)
    models = own(repeat="repeat_1000")
    return [LoadWork("decoupled-stream-1000", models, question, Wire.STREAM, 1, targets=[Target("rate", 1.0)])]


def _pipeline() -> list[Work]:
    question = _detect_question()
    return [
        LoadWork(
            f"detect-binary-{callers}",
            example_ensemble("detect"),
            question,
            Wire.BINARY,
            callers,
            targets=[Target("rate", bound), Target("rate", 0.85, beside=ALONE)],
            alone="detect",
        )
        for callers, bound in ((1, 1.3), (4, 1.7))
    ]


def _detect_question() -> Question:
    photograph = np.array([[EXAMPLE_IMAGE.read_bytes()]], dtype=np.object_)
    return Question("detect", {"RAW_IMAGE": photograph}, "DETECTION_RESULTS", check=_check_detections)


def _densenet() -> list[Work]:
    models = example("densenet_onnx")
    question = Question("densenet_onnx", {"data_0": densenet_image()}, "fc6_1", check=_check_scores)
    target = Target("rate", 0.93, beside=ALONE)
    return [
        LoadWork(
            f"densenet-binary-{callers}", models, question, Wire.BINARY, callers, targets=[target], alone="densenet"
        )
        for callers in (1, 4)
    ]


def _openvino() -> list[Work]:
    """The same files with OpenVINO in onnxruntime's place; Triton and the work alone stay with onnxruntime."""
    detect = example_ensemble("detect") | own(detector="detector_openvino")
    densenet = own(densenet_onnx="densenet_openvino")
    scores = Question("densenet_onnx", {"data_0": densenet_image()}, "fc6_1", check=_check_any_scores)
    return [
        *(
            LoadWork(
                f"detect-openvino-{callers}",
                detect,
                _detect_question(),
                Wire.BINARY,
                callers,
                targets=[Target("rate", 1.4)],
                alone="detect",
            )
            for callers in (1, 4)
        ),
        *(
            LoadWork(
                f"densenet-openvino-{callers}",
                densenet,
                scores,
                Wire.BINARY,
                callers,
                targets=[Target("rate", 1.5, beside=ALONE)],
                alone="densenet",
            )
            for callers in (1, 4)
        ),
    ]


def _start() -> list[Work]:
    question = echo("identity", vector(batched=True))
    many = {"identity": "identity"} | {f"identity_{number}": "identity" for number in range(2, 51)}
    return [
        StartWork("start-1", own(identity="identity"), question, [Target("ready", 0.6), Target("memory", 2.0)], 7),
        StartWork("start-50", own(**many), question, [Target("ready", 0.15), Target("memory", 0.35)], 3),
    ]


def _check_detections(results: Array) -> None:
    """Require what holds of any detector that sees the example image: there is a defect in it, somewhere inside."""
    assert results.shape == (1, 1), f"expected one result, got shape {results.shape}"
    detections = json.loads(results[0, 0])
    assert detections, "no defect found in the example image"
    for detection in detections:
        left, top, right, bottom = detection["bbox"]
        assert left < right, f"empty box {detection}"
        assert top < bottom, f"empty box {detection}"


def _check_scores(scores: Array) -> None:
    """Require what onnxruntime itself answers, but for the order in which threads add up."""
    np.testing.assert_allclose(scores, densenet_scores(), rtol=1e-2, atol=1e-3)


def _check_any_scores(scores: Array) -> None:
    """Require scores that differ. The weights are sines of large numbers, which no two runtimes compute alike."""
    assert scores.shape == (1, 1000), f"expected a score for each class, got shape {scores.shape}"
    assert np.isfinite(scores).all(), "scores are not finite"
    assert len(np.unique(scores)) > 100, "scores do not differ"


def vector(*, batched: bool) -> Array:
    values = np.linspace(-1, 1, 16, dtype=np.float32)
    return values.reshape(1, 16) if batched else values


def echo(model: str, array: Array) -> Question:
    """Return the question to an identity model, to which the only right answer is what was sent."""
    return Question(model, {"INPUT0": array}, "OUTPUT0", check=partial(np.testing.assert_array_equal, array))
