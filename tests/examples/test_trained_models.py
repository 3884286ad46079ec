"""The committed ONNX files do what the README says of them, straight in onnxruntime."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from defects import CLASS_NAMES, draw_plate
from detections import Detections, Thresholds, detect
from detector_score import Score
from numpy.typing import NDArray
from prepare import prepare
from train_digits import split

from .drawing import encode


def open_model(models: Path, name: str) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    return onnxruntime.InferenceSession(str(models / name / "1" / "model.onnx"), options, ["CPUExecutionProvider"])


def find(detector: onnxruntime.InferenceSession, files: list[bytes]) -> list[Detections]:
    """The whole pipeline on one batch of image files."""
    outputs = prepare(files, canvas=640, max_side=4000)
    rows = detector.run(None, {"images": outputs["IMAGE"]})[0]
    items = zip(rows, outputs["LETTERBOX"], outputs["ORIGINAL_SHAPE"], strict=True)
    return [detect(*item, Thresholds()) for item in items]


def test_digits_are_recognised(models: Path) -> None:
    _, held_out = split()
    probabilities = open_model(models, "digits").run(None, {"image": held_out.images})[0]
    assert np.mean(probabilities.argmax(axis=1) == held_out.labels) >= 0.97
    assert np.allclose(probabilities.sum(axis=1), 1, atol=1e-5)


def test_densenet_rows_do_not_depend_on_the_batch(models: Path) -> None:
    session = open_model(models, "densenet_onnx")
    images = np.random.default_rng(0).standard_normal((8, 3, 224, 224), dtype=np.float32)
    images += np.arange(8, dtype=np.float32).reshape(8, 1, 1, 1) / 4
    alone = np.concatenate([session.run(None, {"data_0": image[None]})[0] for image in images])
    assert alone.shape == (8, 1000)
    assert len(np.unique(alone.round(3), axis=0)) == 8
    for size in (4, 8):
        assert np.allclose(session.run(None, {"data_0": images[:size]})[0], alone[:size], atol=1e-4)


def test_detector_rows_do_not_depend_on_the_batch(models: Path) -> None:
    session = open_model(models, "detector")
    images = np.random.default_rng(0).standard_normal((3, 3, 640, 640), dtype=np.float32)
    batch = session.run(None, {"images": images})[0]
    assert batch.shape == (3, 25200, 85)
    for image, rows in zip(images, batch, strict=True):
        assert np.allclose(session.run(None, {"images": image[None]})[0][0], rows, rtol=1e-3, atol=1e-3)


def test_class_names_cover_every_column(models: Path) -> None:
    names = (models / "postprocess" / "labels.txt").read_text().splitlines()
    assert len(names) == 80
    assert tuple(names[: len(CLASS_NAMES)]) == CLASS_NAMES


def test_sample_images_show_their_drawn_defects(models: Path, images: Path) -> None:
    truth = json.loads((images / "ground_truth.json").read_text())
    by_image = find(open_model(models, "detector"), [(images / file).read_bytes() for file in truth])
    for detections, drawn in zip(by_image, truth.values(), strict=True):
        score = scored(detections, drawn)
        assert (score.right, score.detected, score.drawn) == (len(drawn),) * 3


def scored(detections: Detections, drawn: list[dict[str, object]]) -> Score:
    boxes = np.array([defect["bbox"] for defect in drawn], dtype=np.float32)
    classes = np.array([CLASS_NAMES.index(str(defect["class_name"])) for defect in drawn])
    score = Score()
    score.add(detections.boxes, detections.class_ids, boxes, classes)
    return score


@pytest.fixture(scope="module")
def held_out() -> list[tuple[bytes, NDArray[np.float32], NDArray[np.int64]]]:
    """Plates of a seed that neither training nor the README's score uses."""
    rng = np.random.default_rng(20_000_003)
    plates = [draw_plate(rng) for _ in range(40)]
    return [(encode(plate.image[:, :, ::-1], "BMP"), plate.boxes, plate.classes) for plate in plates]


def test_detector_finds_defects_it_never_saw(
    models: Path, held_out: list[tuple[bytes, NDArray[np.float32], NDArray[np.int64]]]
) -> None:
    detector, score = open_model(models, "detector"), Score()
    for file, boxes, classes in held_out:
        (detections,) = find(detector, [file])
        score.add(detections.boxes, detections.class_ids, boxes, classes)
    # The README's figures are of 300 plates; forty leave some room for chance.
    assert score.precision >= 0.85
    assert score.recall >= 0.85
