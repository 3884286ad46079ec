"""Image files as clients send them, decoded the way a person would see them."""

from __future__ import annotations

import io
import warnings

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

FORMATS = ("JPEG", "PNG", "BMP", "WEBP")
_BACKDROP = (114, 114, 114, 255)  # seen through transparent pixels: the grey of the letterbox


class ImageRefused(ValueError):
    """The bytes are not an image that this model accepts; the message is meant for the client."""


def decode(data: bytes, max_side: int) -> NDArray[np.uint8]:
    """The picture in `data` as BGR [height, width, 3], turned as its EXIF orientation says.

    Greyscale becomes three equal channels, 16 bits become 8, transparency shows the letterbox's grey, of an
    animation the first frame counts. Embedded colour profiles are not applied: training saw none.

    Raises ImageRefused if the data is not an image, is damaged, or has a side of more than `max_side` pixels. The
    size is read from the header before a pixel is decoded, so a small file cannot unfold into gigabytes.
    """
    header = _read_header(data)
    width, height = header.size
    if max(width, height) > max_side:
        raise ImageRefused(f"image is {width}x{height} pixels, a side may have at most {max_side}")
    picture = _decode_transparent(header) if header.has_transparency_data else _decode_opaque(data)
    if picture is None:
        raise ImageRefused(f"{header.format} file is damaged or incomplete: its {width}x{height} pixels do not decode")
    return picture


def _read_header(data: bytes) -> Image.Image:
    """The opened, not yet decoded file."""
    if not data:
        raise ImageRefused("image is empty: 0 bytes")
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            return Image.open(io.BytesIO(data), formats=FORMATS)
        except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
            raise ImageRefused(f"image is far too large: {error}") from error
        except UnidentifiedImageError as error:
            raise ImageRefused(
                f"{len(data)} bytes starting with {data[:4].hex(' ')} are not an image of a supported format: "
                f"{', '.join(FORMATS)}"
            ) from error
        except Exception as error:  # a hostile header can trip a parser in many ways; all are the sender's fault
            raise ImageRefused(f"image header is damaged: {error}") from error


def _decode_opaque(data: bytes) -> NDArray[np.uint8] | None:
    try:
        picture = cv2.imdecode(np.frombuffer(data, dtype=np.uint8), cv2.IMREAD_COLOR)
    except cv2.error:
        return None
    return None if picture is None else np.asarray(picture, dtype=np.uint8)


def _decode_transparent(header: Image.Image) -> NDArray[np.uint8] | None:
    """By Pillow, since OpenCV either drops the alpha channel or ignores the orientation."""
    try:
        picture = ImageOps.exif_transpose(header).convert("RGBA")
    except Exception:  # as in the header: whatever a damaged file makes a decoder raise
        return None
    backdrop = Image.new("RGBA", picture.size, _BACKDROP)
    rgb = np.asarray(Image.alpha_composite(backdrop, picture).convert("RGB"))
    return np.asarray(rgb[:, :, ::-1], dtype=np.uint8)
