"""Pictures with one rectangle whose place is known because it was put there."""

from __future__ import annotations

import io
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

# How an upright picture lies in a file with each EXIF orientation.
STORED = {
    1: lambda upright: upright,
    2: lambda upright: upright[:, ::-1],
    3: lambda upright: upright[::-1, ::-1],
    4: lambda upright: upright[::-1],
    5: lambda upright: upright.transpose(1, 0, 2),
    6: lambda upright: np.rot90(upright),
    7: lambda upright: np.rot90(upright.transpose(1, 0, 2), 2),
    8: lambda upright: np.rot90(upright, -1),
}


def black_with_box(width: int, height: int, box: tuple[int, int, int, int]) -> NDArray[np.uint8]:
    """RGB [height, width, 3]: black but for a red rectangle x1, y1, x2, y2."""
    picture = np.zeros((height, width, 3), dtype=np.uint8)
    x1, y1, x2, y2 = box
    picture[y1:y2, x1:x2] = (255, 0, 0)
    return picture


def encode(rgb: NDArray[np.uint8], file_format: str = "PNG", orientation: int = 1, **options: Any) -> bytes:
    """The bytes of an image file that shows `rgb` upright and stores it as `orientation` says."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    stored = np.ascontiguousarray(STORED[orientation](rgb))
    Image.fromarray(stored).save(file, file_format, exif=exif, **options)
    return file.getvalue()


def red_extent(image: NDArray[np.float32]) -> NDArray[np.float32]:
    """Corners [1, 4] of what is red in a normalised detector input [3, side, side], in its pixels."""
    red = image[0] > 0.1  # black is -2.1, the padding -0.2, full red 2.2: half way, where blurred edges lie true
    columns, rows = np.flatnonzero(red.any(axis=0)), np.flatnonzero(red.any(axis=1))
    return np.array([[columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]], dtype=np.float32)


def png_of_one_pixel_claiming(width: int, height: int) -> bytes:
    """A whole PNG file whose header says `width` x `height`, with the data of a single pixel."""
    file = encode(np.zeros((1, 1, 3), dtype=np.uint8))
    header = b"IHDR" + width.to_bytes(4) + height.to_bytes(4) + file[24:29]
    return file[:12] + header + zlib.crc32(header).to_bytes(4) + file[33:]
