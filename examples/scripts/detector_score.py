"""Precision and recall of detections against drawn boxes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass
class Score:
    """Counts over any number of images; the same class and an IoU of `overlap` make a detection right."""

    overlap: float = 0.5
    right: int = 0
    detected: int = 0
    drawn: int = 0

    def add(
        self,
        boxes: NDArray[np.float32],
        class_ids: NDArray[np.int64],
        true_boxes: NDArray[np.float32],
        true_classes: NDArray[np.int64],
    ) -> None:
        """One image: detections `boxes` [n, 4] best first and `class_ids` [n], truth [m, 4] and [m]; corners."""
        overlaps = iou(boxes, true_boxes) * (class_ids[:, None] == true_classes[None, :])
        for row in overlaps:
            if len(row) and row.max() >= self.overlap:
                self.right += 1
                overlaps[:, row.argmax()] = 0  # a defect is found once; a second box on it is a false alarm
        self.detected += len(boxes)
        self.drawn += len(true_boxes)

    @property
    def precision(self) -> float:
        """Share of the detections that are right."""
        return self.right / max(1, self.detected)

    @property
    def recall(self) -> float:
        """Share of the drawn defects that were found."""
        return self.right / max(1, self.drawn)


def iou(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
    """Intersection over union of every box of `a` [n, 4] with every box of `b` [m, 4], corners; [n, m]."""
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, 2:], b[None, :, 2:])
    shared = np.clip(high - low, 0, None).prod(axis=2)
    area_a, area_b = ((boxes[:, 2:] - boxes[:, :2]).prod(axis=1) for boxes in (a, b))
    return np.asarray(shared / (area_a[:, None] + area_b[None, :] - shared), dtype=np.float32)
