"""A request's image files → its output tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
from image_file import ImageRefused, decode
from letterbox import Letterbox
from normalise import normalise
from numpy.typing import NDArray


def prepare(files: list[bytes], canvas: int, max_side: int) -> dict[str, NDArray[Any]]:
    """The outputs by name, one row for each file, whatever the sizes of the images.

    IMAGE FP32 [n, 3, canvas, canvas]: letterboxed, RGB, normalised. LETTERBOX FP32 [n, 4]: see `Letterbox`.
    ORIGINAL_SHAPE INT32 [n, 2]: height and width of the upright image. Raises ImageRefused naming the file.
    """
    images = np.empty((len(files), 3, canvas, canvas), dtype=np.float32)
    letterboxes = np.empty((len(files), 4), dtype=np.float32)
    shapes = np.empty((len(files), 2), dtype=np.int32)
    for index, file in enumerate(files):
        try:
            picture = decode(file, max_side)
        except ImageRefused as refusal:
            raise ImageRefused(f"RAW_IMAGE[{index}]: {refusal}") from refusal
        height, width = picture.shape[:2]
        letterbox = Letterbox.fit(width, height, canvas)
        normalise(letterbox.place(picture), out=images[index])
        letterboxes[index] = letterbox.as_tensor()
        shapes[index] = height, width
    return {"IMAGE": images, "LETTERBOX": letterboxes, "ORIGINAL_SHAPE": shapes}
