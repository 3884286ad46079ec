"""Images in the messages of chats: data URLs become encoded bytes whose format and size are known, without decoding.

The readers of APIs make an image a part of a message by `image_part`; `take_images` reads those parts where the model
is known. URLs of other schemes are refused: the server fetches nothing, so that no client reaches its network.
"""

import binascii
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from conch.base.errors import InvalidParameter

MAX_IMAGE_BYTES = 20 * 2**20  # encoded, of all images of a request
MAX_IMAGE_PIXELS = 2**26  # decoded, of all images of a request
# Of a JPEG file with its thumbnails: each scan may cost a pass over all pixels and have a few bytes.
MAX_JPEG_SCANS = 64
# Of other segments: Pillow joins those of Exif one by one, each time with a copy.
MAX_JPEG_SEGMENTS = 512
IMAGE_PART = "image"
_TOO_LARGE = f"exceeds the {MAX_IMAGE_BYTES} bytes that the images of a request may have together"
_HEAD = re.compile(r"data:([\w.+/-]{0,64})((?:;[\w.+=-]{1,64}){0,4}),", re.ASCII | re.IGNORECASE)
_MAX_HEAD_CHARACTERS = 512
_FORM = "a data URL such as data:image/png;base64,… : the server fetches nothing from other places"
# Markers of JPEG that begin a frame: all from C0 to CF but tables (C4), extensions (C8) and arithmetic coding (CC).
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SCAN, _END = 0xDA, 0xD9
# A marker with a segment, or the end; those within the data of a scan (restarts, stuffed zeros) have none.
_MARKER = re.compile(rb"\xff([^\x00\x01\xd0-\xd8\xff])", re.DOTALL)
_Size = tuple[int, int]


class EncodedImage(NamedTuple):
    """An encoded image: its format by Pillow's name, its size in pixels as its header says, and the file."""

    format: str
    width: int
    height: int
    data: bytes | bytearray | memoryview


def image_part(url: Any, where: str) -> dict[str, Any]:
    """Return the part of a message for an image; `where` is the client's name of it."""
    return {"type": IMAGE_PART, "url": url, "where": where}


def content_of(pieces: Sequence[str | dict[str, Any]], separator: str) -> str | list[dict[str, Any]]:
    """Return texts and parts for images as the content of a message: a text, if they are texts only."""
    parts: list[dict[str, Any]] = []
    for piece in pieces:
        if not isinstance(piece, str):
            parts.append(piece)
        elif parts and parts[-1]["type"] == "text":
            parts[-1]["text"] += separator + piece
        else:
            parts.append({"type": "text", "text": piece})
    if any(part["type"] != "text" for part in parts):
        return parts
    return str(parts[0]["text"]) if parts else ""


def join_contents(contents: Sequence[Any], separator: str) -> str | list[dict[str, Any]]:
    """Return the contents of messages as that of one message; empty ones are left out."""
    lists = [content if isinstance(content, list) else [{"type": "text", "text": content}] for content in contents]
    parts = [part for parts in lists for part in parts]
    texts = [part["text"] if part["type"] == "text" else part for part in parts]
    return content_of([text for text in texts if text], separator)


def text_of(content: Any) -> str:
    """Return the texts of a message's content."""
    parts = content if isinstance(content, list) else []
    return "\n".join(part["text"] for part in parts if part["type"] == "text") if parts else content or ""


def take_images(
    messages: Sequence[Mapping[str, Any]], limit: int
) -> tuple[list[Mapping[str, Any]], list[EncodedImage]]:
    """Return messages whose parts for images have only a type, and the images in their order.

    `limit` is the number that the model takes, 0 for a model of texts. Raises InvalidParameter, naming the image.
    """
    images: list[EncodedImage] = []
    taken: list[Mapping[str, Any]] = []
    for message in messages:
        parts = message.get("content")
        if isinstance(parts, list):
            message = {**message, "content": [_taken(part, images, limit) for part in parts]}
        taken.append(message)
    return taken, images


def _taken(part: Mapping[str, Any], images: list[EncodedImage], limit: int) -> Mapping[str, Any]:
    if part.get("type") != IMAGE_PART:
        return part
    where: str = part["where"]
    if not limit:
        text = "describe the image, or use a model that takes images"
        raise InvalidParameter(where, f"'{where}' is an image, and the model takes only text: {text}")
    if len(images) == limit:
        raise InvalidParameter(where, f"'{where}' is one image too many: the model takes {limit} in a request")
    try:
        image = read_image(part["url"])
        images.append(image)
        if sum(len(image.data) for image in images) > MAX_IMAGE_BYTES:
            raise ValueError(_TOO_LARGE)
        if sum(image.width * image.height for image in images) > MAX_IMAGE_PIXELS:
            text = f"of {image.width}x{image.height} pixels exceeds the {MAX_IMAGE_PIXELS}"
            raise ValueError(f"{text} that the images of a request may have together: send a smaller one")
    except ValueError as error:
        raise InvalidParameter(where, f"the image '{where}' {error}") from None
    return {"type": IMAGE_PART}


def read_image(url: Any) -> EncodedImage:
    """Decode a data URL. Raises ValueError with what is wrong with it."""
    head = _HEAD.match(url, 0, _MAX_HEAD_CHARACTERS) if isinstance(url, str) else None
    if head is None or not head[2].lower().endswith(";base64"):
        raise ValueError(f"must be {_FORM}")
    if head[1] and not head[1].lower().startswith("image/"):
        raise ValueError(f"has the media type {head[1]}, which is not one of images")
    if (len(url) - head.end()) // 4 * 3 > MAX_IMAGE_BYTES + 3:
        raise ValueError(_TOO_LARGE)
    try:
        data = binascii.a2b_base64(url[head.end() :].encode("ascii"), strict_mode=True)
    except (binascii.Error, UnicodeEncodeError):
        raise ValueError("is not valid base64") from None
    for name, magic, size_of in _FORMATS:
        if magic(data):
            try:
                width, height = size_of(data)
            except (struct.error, IndexError):
                width = height = 0
            if not width or not height:
                raise ValueError(f"is a damaged {name} file")
            return EncodedImage(name, width, height, data)
    raise ValueError("must be a file of PNG, JPEG, WebP or GIF")


def _png(data: bytes) -> _Size:
    if data[12:16] != b"IHDR":
        return 0, 0
    width, height = struct.unpack_from(">II", data, 16)
    return width, height


def _jpeg(data: bytes) -> _Size:
    """Return the size of the frame, after a walk to the end of the image: phones append films to photos."""
    size, scans, segments, position = (0, 0), 0, 0, 2
    while marker := _MARKER.search(data, position):
        (kind,), position = marker[1], marker.end()
        if kind == _END:
            break
        if kind in _FRAMES and not any(size):
            height, width = struct.unpack_from(">HH", data, position + 3)
            size = width, height
        scans += kind == _SCAN
        segments += kind != _SCAN
        if scans > MAX_JPEG_SCANS:
            raise ValueError(f"has more than {MAX_JPEG_SCANS} scans: save it as a baseline JPEG")
        if segments > MAX_JPEG_SEGMENTS:
            raise ValueError(f"has more than {MAX_JPEG_SEGMENTS} segments: save it without metadata")
        position += int(struct.unpack_from(">H", data, position)[0])
    return size


def _webp(data: bytes) -> _Size:
    kind = data[12:16]
    if kind == b"VP8X":
        return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        width, height = struct.unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    return 0, 0


def _gif(data: bytes) -> _Size:
    """Return the size of the screen, or of the first frame if that is larger."""
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    position = 13 + (3 << (flags & 7) + 1 if flags & 0x80 else 0)
    while data[position] == 0x21:  # extensions
        position += 2
        while data[position]:
            position += data[position] + 1
        position += 1
    if data[position] != 0x2C:
        return 0, 0
    left, top, frame_width, frame_height = struct.unpack_from("<HHHH", data, position + 1)
    return max(width, left + frame_width), max(height, top + frame_height)


# Pillow's name, the mark, and what reads the size.
_FORMATS: Sequence[tuple[str, Callable[[bytes], bool], Callable[[bytes], _Size]]] = (
    ("PNG", lambda data: data.startswith(b"\x89PNG\r\n\x1a\n"), _png),
    ("JPEG", lambda data: data.startswith(b"\xff\xd8\xff"), _jpeg),
    ("WEBP", lambda data: data.startswith(b"RIFF") and data[8:12] == b"WEBP", _webp),
    ("GIF", lambda data: data.startswith((b"GIF87a", b"GIF89a")), _gif),
)
