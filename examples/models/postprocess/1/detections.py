"""From the rows of a detector to the defects of one image, in that image's own pixels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Thresholds:
    """What counts as a detection."""

    confidence: float = 0.3
    """Least objectness times class score."""
    overlap: float = 0.5
    """Two boxes of one class that overlap by more than this (IoU) are one defect; the better box stays."""
    max_candidates: int = 1000
    """Number of best rows that enter suppression, whose cost grows with the square of their number."""
    max_detections: int = 100
    """Number of best boxes that are returned."""


@dataclass(frozen=True)
class Detections:
    """`boxes` FP32 [n, 4] as x1, y1, x2, y2; `confidences` FP32 [n], falling; `class_ids` INT64 [n]."""

    boxes: NDArray[np.float32]
    confidences: NDArray[np.float32]
    class_ids: NDArray[np.int64]

    def take(self, index: NDArray[np.int64]) -> Detections:
        """Those at `index`, in its order."""
        return Detections(self.boxes[index], self.confidences[index], self.class_ids[index])


def detect(
    rows: NDArray[np.float32],
    letterbox: NDArray[np.float32],
    original_shape: NDArray[np.int32],
    thresholds: Thresholds,
) -> Detections:
    """The detections of one image.

    `rows` [n, 5 + classes]: centre x, centre y, width, height in canvas pixels, objectness, class scores.
    `letterbox` [4] and `original_shape` [2] are the preprocess model's outputs LETTERBOX and ORIGINAL_SHAPE.
    """
    kept = suppress(select_candidates(rows, thresholds), thresholds)
    return Detections(to_original(kept.boxes, letterbox, original_shape), kept.confidences, kept.class_ids)


def select_candidates(rows: NDArray[np.float32], thresholds: Thresholds) -> Detections:
    """Rows whose best class is confident enough, best first, at most `max_candidates`; boxes as corners."""
    # Objectness bounds the product from above: this drops nearly all of the 25200 rows before any arithmetic.
    rows = rows[rows[:, 4] >= thresholds.confidence]
    scores = rows[:, 5:] * rows[:, 4:5]
    class_ids = scores.argmax(axis=1)
    confidences = scores[np.arange(len(rows)), class_ids]
    order = np.argsort(-confidences, kind="stable")
    order = order[confidences[order] >= thresholds.confidence][: thresholds.max_candidates]
    centres, halves = rows[order, :2], rows[order, 2:4] * np.float32(0.5)
    boxes: NDArray[np.float32] = np.concatenate((centres - halves, centres + halves), axis=1)
    return Detections(boxes, confidences[order], class_ids[order])


def suppress(candidates: Detections, thresholds: Thresholds) -> Detections:
    """Non-maximum suppression within each class: of boxes that overlap too much only the best stays."""
    corners = candidates.boxes
    widths_heights = corners[:, 2:] - corners[:, :2]
    kept = cv2.dnn.NMSBoxesBatched(
        np.concatenate((corners[:, :2], widths_heights), axis=1).astype(np.float64).tolist(),
        candidates.confidences.tolist(),
        candidates.class_ids.tolist(),
        0.0,  # the candidates passed their threshold already
        thresholds.overlap,
    )
    # OpenCV answers with an empty tuple where nothing is left.
    index = np.sort(np.asarray(kept, dtype=np.int64).reshape(-1))
    return candidates.take(index[: thresholds.max_detections])


def to_original(
    boxes: NDArray[np.float32], letterbox: NDArray[np.float32], original_shape: NDArray[np.int32]
) -> NDArray[np.float32]:
    """Boxes [n, 4] from canvas pixels to the pixels of the image that was sent, clipped to it."""
    scale_x, scale_y, left, top = letterbox
    height, width = original_shape
    offset = np.array((left, top, left, top), dtype=np.float32)
    scale = np.array((scale_x, scale_y, scale_x, scale_y), dtype=np.float32)
    limits = np.array((width, height, width, height), dtype=np.float32)
    return np.asarray(np.clip((boxes - offset) / scale, 0, limits), dtype=np.float32)


def as_records(detections: Detections, class_names: list[str]) -> list[dict[str, Any]]:
    """What the client reads: one JSON object for each detection, the most confident first."""
    return [
        {
            "bbox": [round(float(side), 1) for side in box],
            "confidence": round(float(confidence), 4),
            "class_id": int(class_id),
            "class_name": class_names[class_id],
        }
        for box, confidence, class_id in zip(
            detections.boxes, detections.confidences, detections.class_ids, strict=True
        )
    ]
