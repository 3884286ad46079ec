"""Decode the images of prompts from their files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any

from PIL import Image

from .driver import Refused

# Makes of pixels what the engine takes.
Convert = Callable[[Any], Any]


def decoded(files: Sequence[tuple[str, int, int, bytes]], convert: Convert) -> list[Any]:
    """Return the pixels of each file. Raises Refused.

    The text of Pillow's errors may have addresses of memory, and is left out.
    """
    return [_decoded(number, *file, convert) for number, file in enumerate(files, 1)]


def _decoded(number: int, kind: str, width: int, height: int, file: bytes, convert: Convert) -> Any:
    try:
        image = Image.open(BytesIO(file), formats=(kind,))
        if image.width * image.height <= width * height:  # before a larger frame takes memory
            image.load()
            return convert(image)
    except Exception:  # of a damaged file: Pillow raises errors of many kinds
        raise Refused(f"image {number} of the request cannot be decoded as {kind}: the file is damaged") from None
    raise Refused(f"image {number} of the request is larger than its header says")
