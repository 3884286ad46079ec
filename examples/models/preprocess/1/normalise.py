"""Pixels to what the detector was trained on."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
"""Per channel R, G, B of values in 0..1: those of ImageNet, which the training script uses as well."""

# A pixel has only 256 values, so (value / 255 - mean) / std is looked up, in place of three passes over floats.
_TABLES = tuple(((np.arange(256) / 255 - mean) / std).astype(np.float32) for mean, std in zip(MEAN, STD, strict=True))


def normalise(image: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
    """Write `image` [height, width, 3] BGR as normalised RGB planes into `out` [3, height, width]."""
    for plane, (table, channel) in zip(out, zip(_TABLES, (2, 1, 0), strict=True), strict=True):
        cv2.LUT(image[:, :, channel], table, dst=plane)
