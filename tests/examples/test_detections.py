"""Thresholds and suppression on rows written by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
from detections import Thresholds, as_records, detect
from letterbox import Letterbox
from numpy.typing import NDArray

SQUARE = Letterbox.fit(640, 640).as_tensor()
SHAPE = np.array((640, 640), dtype=np.int32)
NAMES = [f"class {index}" for index in range(80)]


def rows(*detections: tuple[float, float, float, float, float, int]) -> NDArray[np.float32]:
    """Detector rows [25200, 85]: empty but for (centre x, centre y, width, height, objectness, class id)."""
    made = np.zeros((25200, 85), dtype=np.float32)
    for index, (*box, objectness, class_id) in enumerate(detections):
        row = made[index * 997]  # spread over the scales
        row[:4], row[4], row[5 + class_id] = box, objectness, 1.0
    return made


def test_centre_and_size_become_corners() -> None:
    detections = detect(rows((100, 200, 40, 60, 0.9, 2)), SQUARE, SHAPE, Thresholds())
    assert detections.boxes.tolist() == [[80, 170, 120, 230]]
    assert detections.class_ids.tolist() == [2]


def test_overlapping_boxes_of_one_class_leave_the_best() -> None:
    detections = detect(rows((100, 100, 50, 50, 0.6, 1), (103, 100, 50, 50, 0.9, 1)), SQUARE, SHAPE, Thresholds())
    assert detections.confidences.tolist() == pytest.approx([0.9])


def test_overlapping_boxes_of_different_classes_both_stay() -> None:
    detections = detect(rows((100, 100, 50, 50, 0.6, 1), (103, 100, 50, 50, 0.9, 3)), SQUARE, SHAPE, Thresholds())
    assert detections.class_ids.tolist() == [3, 1]


def test_overlap_threshold_decides() -> None:
    pair = rows((100, 100, 40, 40, 0.9, 0), (120, 100, 40, 40, 0.8, 0))  # IoU one third
    assert len(detect(pair, SQUARE, SHAPE, Thresholds(overlap=0.3)).boxes) == 1
    assert len(detect(pair, SQUARE, SHAPE, Thresholds(overlap=0.4)).boxes) == 2


def test_confidence_is_objectness_times_class_score() -> None:
    made = rows((100, 100, 50, 50, 0.5, 7))
    made[0, 5 + 7] = 0.5
    assert detect(made, SQUARE, SHAPE, Thresholds(confidence=0.2)).confidences.tolist() == pytest.approx([0.25])
    assert len(detect(made, SQUARE, SHAPE, Thresholds(confidence=0.3)).boxes) == 0


def test_suppression_sees_one_image_only() -> None:
    """Two images with the same box each keep it; joined they would lose one."""
    batch = np.stack((rows((100, 100, 50, 50, 0.9, 0)), rows((101, 100, 50, 50, 0.8, 0))))
    letterboxes = np.stack((Letterbox.fit(640, 640).as_tensor(), Letterbox.fit(1280, 1280).as_tensor()))
    shapes = np.array(((640, 640), (1280, 1280)), dtype=np.int32)
    detections = [detect(*item, Thresholds()) for item in zip(batch, letterboxes, shapes, strict=True)]
    assert [detection.boxes.tolist() for detection in detections] == [[[75, 75, 125, 125]], [[152, 150, 252, 250]]]


def test_nothing_found_is_an_empty_list() -> None:
    detections = detect(rows(), SQUARE, SHAPE, Thresholds())
    assert json.dumps(as_records(detections, NAMES)) == "[]"


def test_rows_that_are_not_numbers_are_nothing() -> None:
    made = rows((100, 100, 50, 50, 0.9, 0))
    made[5] = np.nan
    assert len(detect(made, SQUARE, SHAPE, Thresholds()).boxes) == 1


def test_candidates_and_detections_are_bounded_best_first() -> None:
    """A detector gone wrong, where every row is a sure hit somewhere else, costs bounded time."""
    rng = np.random.default_rng(0)
    made = np.zeros((25200, 85), dtype=np.float32)
    made[:, :2], made[:, 2:4], made[:, 4] = rng.uniform(0, 640, (25200, 2)), 2, rng.uniform(0.5, 1, 25200)
    made[:, 5] = 1
    detections = detect(made, SQUARE, SHAPE, Thresholds(max_candidates=300, max_detections=20))
    assert len(detections.boxes) == 20
    assert np.all(np.diff(detections.confidences) <= 0)
    assert detections.confidences[0] == made[:, 4].max()


def test_record_is_what_a_client_reads() -> None:
    detections = detect(rows((100.04, 200, 40, 60, 0.9, 2)), SQUARE, SHAPE, Thresholds())
    assert json.loads(json.dumps(as_records(detections, NAMES))) == [
        {"bbox": [80.0, 170.0, 120.0, 230.0], "confidence": 0.9, "class_id": 2, "class_name": "class 2"}
    ]
