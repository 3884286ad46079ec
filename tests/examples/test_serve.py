"""The example repository through a running server and the official client."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import tritonclient.http as triton
from sklearn.datasets import load_digits
from tritonclient.utils import InferenceServerException

from tests.support.server_process import ConchProcess

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES / "clients"))

from chat import ask  # noqa: E402 - found by the line above
from detect import annotate, detect  # noqa: E402


@pytest.fixture(scope="module")
def conch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    with ConchProcess(EXAMPLES / "models", log=tmp_path_factory.mktemp("examples") / "log") as server:
        yield server


@pytest.fixture
def client(conch: ConchProcess) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(conch.http, network_timeout=60) as client:
        yield client


def overlap(box_a: list[float], box_b: list[float]) -> float:
    """Intersection over union."""
    width = min(box_a[2], box_b[2]) - max(box_a[0], box_b[0])
    height = min(box_a[3], box_b[3]) - max(box_a[1], box_b[1])
    both = max(width, 0) * max(height, 0)
    area = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (box_a, box_b))
    return both / (area - both)


def test_simple_echo(client: triton.InferenceServerClient) -> None:
    tensor = triton.InferInput("INPUT_TEXT", [2, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[b"one"], [b"two"]], dtype=object))
    result = client.infer("simple_echo", [tensor]).as_numpy("OUTPUT_TEXT")
    assert result.tolist() == [[b"echo: one"], [b"echo: two"]]


def test_densenet_classifies_with_labels(client: triton.InferenceServerClient, conch: ConchProcess) -> None:
    image = np.random.default_rng(0).random((2, 3, 224, 224)).astype(np.float32)
    tensor = triton.InferInput("data_0", list(image.shape), "FP32")
    tensor.set_data_from_numpy(image)
    wanted = [triton.InferRequestedOutput("fc6_1", class_count=3)]
    result = client.infer("densenet_onnx", [tensor], outputs=wanted).as_numpy("fc6_1")
    assert result.shape == (2, 3)
    labels = (EXAMPLES / "models" / "densenet_onnx" / "labels.txt").read_text().splitlines()
    for entry in result.ravel():
        _, index, label = entry.decode().split(":")
        assert labels[int(index)] == label
    # The configuration asks for a GPU; without one it is served on the CPU, and the log says so.
    assert "KIND_GPU" in conch.text


def test_digits_are_read(client: triton.InferenceServerClient) -> None:
    digits = load_digits()
    right = 0
    for image, truth in zip(digits.images[-64:], digits.target[-64:], strict=True):
        tensor = triton.InferInput("image", [1, 8, 8], "FP32")
        tensor.set_data_from_numpy(image[None].astype(np.float32))
        wanted = [triton.InferRequestedOutput("probabilities", class_count=1)]
        answer = client.infer("digits", [tensor], outputs=wanted).as_numpy("probabilities").item()
        right += int(answer.decode().split(":")[1]) == truth
    assert right >= 61


@pytest.mark.parametrize("name", ["plate.jpg", "plate_rotated.jpg"])
def test_a_jpeg_goes_in_and_boxes_come_out(client: triton.InferenceServerClient, name: str) -> None:
    image = (EXAMPLES / "images" / name).read_bytes()
    (detections,) = detect(client, [image])
    for truth in drawn(name):
        matching = [detection for detection in detections if detection["class_name"] == truth["class_name"]]
        assert any(overlap(detection["bbox"], truth["bbox"]) > 0.5 for detection in matching), (truth, detections)
    assert annotate(image, detections)[:2] == b"\xff\xd8"


def drawn(name: str) -> list[dict[str, Any]]:
    """The boxes that the image was drawn with."""
    truth = json.loads((EXAMPLES / "images" / "ground_truth.json").read_text())
    return truth[name]  # type: ignore[no-any-return]


def test_a_batch_of_different_images_is_answered_one_by_one(client: triton.InferenceServerClient) -> None:
    images = [(EXAMPLES / "images" / name).read_bytes() for name in ("plate.jpg", "plate_rotated.jpg", "plate.jpg")]
    together = detect(client, images)
    alone = [detect(client, [image])[0] for image in images]
    for many, single in zip(together, alone, strict=True):
        assert [d["class_name"] for d in many] == [d["class_name"] for d in single]
        for a, b in zip(many, single, strict=True):
            np.testing.assert_allclose(a["bbox"], b["bbox"], atol=1.5)


def test_the_pipeline_as_a_program_answers_as_the_ensemble_does(client: triton.InferenceServerClient) -> None:
    images = [(EXAMPLES / "images" / name).read_bytes() for name in ("plate.jpg", "plate_rotated.jpg")]
    for image in images:
        assert detect(client, [image], model="detect_bls") == detect(client, [image])


@pytest.mark.parametrize("model", ["detect", "detect_bls"])
def test_data_that_is_not_an_image_is_a_client_error(client: triton.InferenceServerClient, model: str) -> None:
    with pytest.raises(InferenceServerException) as caught:
        detect(client, [b"not an image"], model)
    assert caught.value.status() == "400"
    assert "preprocess" in caught.value.message()


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("What is Conch?", "Conch is an inference server in Python."),
        ("What does numpy.linspace do?", "Return evenly spaced numbers over a specified interval."),
        ("What does zqwx.vbrl do?", "I do not know."),
    ],
)
def test_the_chat_model_answers_in_readable_words(conch: ConchProcess, question: str, answer: str) -> None:
    with openai.OpenAI(base_url=f"http://{conch.http}/v1", api_key="none") as chat:
        pieces = list(ask(chat, question))
    assert "".join(pieces).startswith(answer)
    assert len([piece for piece in pieces if piece]) > 1, "it came in one piece"
