"""Where an image of any size lies inside the detector's square canvas."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

PAD_VALUE = 114  # the grey that YOLO networks are trained to ignore


@dataclass(frozen=True)
class Letterbox:
    """The image scaled to `width` x `height` pixels, its top left corner at (`left`, `top`) of the canvas.

    The two scales differ a little because both sides are rounded to whole pixels; on very elongated images
    a single ratio would be off by many pixels of the original.
    """

    canvas: int
    width: int
    height: int
    left: int
    top: int
    scale_x: float
    scale_y: float

    @classmethod
    def fit(cls, image_width: int, image_height: int, canvas: int = 640) -> Letterbox:
        """The largest centred placement that keeps the aspect ratio; smaller images are enlarged."""
        ratio = min(canvas / image_width, canvas / image_height)
        width = max(1, round(image_width * ratio))
        height = max(1, round(image_height * ratio))
        left, top = (canvas - width) // 2, (canvas - height) // 2
        return cls(canvas, width, height, left, top, width / image_width, height / image_height)

    def place(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Resize `image` [height, width, 3] and put it on the padded canvas [canvas, canvas, 3]."""
        placed = np.full((self.canvas, self.canvas, 3), PAD_VALUE, dtype=np.uint8)
        # Linear interpolation looks at two pixels a side, so below one half it would step over thin scratches.
        method = cv2.INTER_LINEAR if self.scale_x >= 0.5 else cv2.INTER_AREA
        window = placed[self.top : self.top + self.height, self.left : self.left + self.width]
        window[:] = cv2.resize(image, (self.width, self.height), interpolation=method)
        return placed

    def as_tensor(self) -> NDArray[np.float32]:
        """FP32 [4]: scale_x, scale_y, left, top, so that canvas = original * scale + offset."""
        return np.array([self.scale_x, self.scale_y, self.left, self.top], dtype=np.float32)
