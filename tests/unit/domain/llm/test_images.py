"""Images in data URLs: formats and sizes as Pillow reads them, and files that must not be decoded."""

import base64
import io
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from PIL import Image as Pillow

from conch.base.errors import InvalidParameter
from conch.domain.llm.images import (
    MAX_IMAGE_BYTES,
    MAX_IMAGE_PIXELS,
    MAX_JPEG_SCANS,
    MAX_JPEG_SEGMENTS,
    content_of,
    image_part,
    join_contents,
    read_image,
    take_images,
    text_of,
)


def file_of(kind: str, size: tuple[int, int] = (37, 5), mode: str = "RGB", **options: Any) -> bytes:
    file = io.BytesIO()
    Pillow.new(mode, size, "red" if mode != "L" else 200).save(file, kind, **options)
    return file.getvalue()


def url_of(file: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{base64.b64encode(file).decode()}"


def frames(kind: str) -> bytes:
    file = io.BytesIO()
    pictures = [Pillow.new("RGB", (9, 11), color) for color in ("red", "blue", "green")]
    pictures[0].save(file, kind, save_all=True, append_images=pictures[1:])
    return file.getvalue()


FILES: Sequence[tuple[str, bytes]] = (
    ("PNG", file_of("PNG")),
    ("PNG", file_of("PNG", mode="RGBA")),
    ("PNG", frames("PNG")),
    ("JPEG", file_of("JPEG")),
    ("JPEG", file_of("JPEG", progressive=True, comment=b"\xff\xd9 a comment", exif=Pillow.Exif())),
    ("JPEG", file_of("JPEG", mode="L", size=(1, 300))),
    ("WEBP", file_of("WEBP")),
    ("WEBP", file_of("WEBP", lossless=True)),
    ("WEBP", file_of("WEBP", mode="RGBA", lossless=True, size=(300, 2))),
    ("WEBP", file_of("WEBP", exif=b"Exif\0\0II*\0\x08\0\0\0\0\0")),
    ("WEBP", frames("WEBP")),
    ("GIF", file_of("GIF")),
    ("GIF", frames("GIF")),
    ("GIF", file_of("GIF", comment=b"a comment")),
)


@pytest.mark.parametrize(("kind", "file"), FILES, ids=[kind for kind, _ in FILES])
def test_the_size_is_the_decoders(kind: str, file: bytes) -> None:
    image = read_image(url_of(file))
    with Pillow.open(io.BytesIO(file)) as decoded:
        assert (image.format, image.width, image.height) == (decoded.format, *decoded.size)
    assert (image.format, image.data) == (kind, file)


def test_the_file_says_what_it_is() -> None:
    file = file_of("JPEG")
    for url in (url_of(file, "image/png"), url_of(file, ""), url_of(file, "IMAGE/jpeg;charset=utf-8")):
        assert read_image(url).format == "JPEG"


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("https://example.com/cat.png", "must be a data URL"),
        ("http://169.254.169.254/latest", "fetches nothing"),
        ("file:///etc/passwd", "must be a data URL"),
        ("data:image/png,abc", "must be a data URL"),
        ("data:image/png;base64", "must be a data URL"),
        (" data:image/png;base64,", "must be a data URL"),
        ("data:" + "a" * 100_000, "must be a data URL"),
        ("", "must be a data URL"),
        (None, "must be a data URL"),
        ({"url": "data:"}, "must be a data URL"),
        (url_of(file_of("PNG"), "application/pdf"), "media type application/pdf"),
        (url_of(file_of("PNG"))[:-3], "is not valid base64"),
        ("data:image/png;base64,ab cd", "is not valid base64"),
        ("data:image/png;base64,üü", "is not valid base64"),
        ("data:image/png;base64,", "must be a file of PNG, JPEG, WebP or GIF"),
        (url_of(file_of("TIFF"), "image/tiff"), "must be a file of PNG, JPEG, WebP or GIF"),
        (url_of(file_of("BMP"), "image/bmp"), "must be a file of PNG, JPEG, WebP or GIF"),
        (url_of(b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image/svg+xml"), "must be a file of PNG"),
        (url_of(file_of("PNG")[:20]), "is a damaged PNG file"),
        (url_of(file_of("JPEG")[:100]), "is a damaged JPEG file"),
        (url_of(file_of("GIF")[:12]), "is a damaged GIF file"),
        (url_of(file_of("WEBP")[:25]), "is a damaged WEBP file"),
        ("data:image/png;base64," + "A" * (MAX_IMAGE_BYTES * 4 // 3 + 100), "exceeds the 20971520 bytes"),
    ],
)
def test_what_is_refused(url: Any, reason: str) -> None:
    with pytest.raises(InvalidParameter, match=reason) as refused:
        take_images([{"role": "user", "content": [image_part(url, "messages[0].content[0]")]}], 1)
    assert refused.value.param == "messages[0].content[0]"
    assert "messages[0].content[0]" in refused.value.message
    assert len(refused.value.message) < 300


def with_size(file: bytes, position: int, size: bytes) -> bytes:
    return file[:position] + size + file[position + len(size) :]


@pytest.mark.parametrize(
    "bomb",
    [
        with_size(file_of("PNG"), 16, b"\x00\x00\xff\xff" * 2),
        with_size(file_of("GIF"), 6, b"\xff" * 4),
        # The screen is small, and the first frame is not.
        (lambda file: with_size(file, file.index(b"\x2c\0\0\0\0") + 5, b"\xff" * 4))(file_of("GIF")),
        (lambda file: with_size(file, file.index(b"\xff\xc0") + 5, b"\xff" * 4))(file_of("JPEG")),
        (lambda file: with_size(file, 24, b"\xff\x3f\0" * 2))(frames("WEBP")),
    ],
    ids=["png", "gif", "gif frame", "jpeg", "webp"],
)
def test_a_bomb_is_refused_by_its_header(bomb: bytes) -> None:
    with pytest.raises(InvalidParameter, match=f"exceeds the {MAX_IMAGE_PIXELS}"):
        take_images([{"role": "user", "content": [image_part(url_of(bomb), "image")]}], 1)


def test_scans_of_a_jpeg_are_bounded() -> None:
    file = file_of("JPEG", progressive=True)
    scan = file[file.index(b"\xff\xda") :][:14]
    with pytest.raises(ValueError, match="scans"):
        read_image(url_of(file[:-2] + scan * MAX_JPEG_SCANS + file[-2:]))


def test_segments_of_a_jpeg_are_bounded() -> None:
    file = file_of("JPEG")
    others = 10
    for segment in (b"\xff\xe1\x00\x0aExif\x00\x00aa", b"\xff\xfe\x00\x02"):  # Pillow joins Exif in quadratic time
        read_image(url_of(file[:2] + segment * (MAX_JPEG_SEGMENTS - others) + file[2:]))
        with pytest.raises(ValueError, match="segments"):
            read_image(url_of(file[:2] + segment * (MAX_JPEG_SEGMENTS + 1) + file[2:]))


def test_what_follows_a_jpeg_is_not_read() -> None:
    """Phones append a film to a photo, and its bytes look like any marker."""
    image = read_image(url_of(file_of("JPEG", size=(30, 20)) + b"\xff\xda\xff\xe1\xff\xc0" * 5000))
    assert (image.width, image.height) == (30, 20)
    image = read_image(url_of(file_of("JPEG", size=(300, 200), restart_marker_rows=1)))
    assert (image.width, image.height) == (300, 200)


def test_images_of_a_request_are_bounded_together() -> None:
    large = with_size(file_of("PNG"), 16, (8192).to_bytes(4, "big") + (4097).to_bytes(4, "big"))
    parts = [image_part(url_of(large), f"image {number}") for number in (1, 2)]
    take_images([{"role": "user", "content": parts[:1]}], 2)
    with pytest.raises(InvalidParameter, match="image 2") as refused:
        take_images([{"role": "user", "content": parts[:1]}, {"role": "user", "content": parts[1:]}], 2)
    assert refused.value.param == "image 2"
    with pytest.raises(InvalidParameter, match="'image 2' is one image too many: the model takes 1"):
        take_images([{"role": "user", "content": parts}], 1)
    heavy = file_of("PNG") + bytes(MAX_IMAGE_BYTES // 2)
    with pytest.raises(InvalidParameter, match="bytes that the images of a request may have together"):
        take_images([{"role": "user", "content": [image_part(url_of(heavy), "image")] * 2}], 2)


def test_a_model_of_texts_takes_no_images() -> None:
    with pytest.raises(InvalidParameter, match="takes only text: describe the image"):
        take_images([{"role": "user", "content": [image_part("data:,", "messages[0].content[0]")]}], 0)


def test_random_bytes_raise_nothing_else() -> None:
    draw = random.Random(11)
    kinds: list[Callable[[bytes], bytes]] = [
        lambda file: file[: draw.randrange(len(file))],
        lambda file: with_size(file, draw.randrange(len(file)), draw.randbytes(3)),
        lambda file: file[:12] + draw.randbytes(40),
    ]
    for _, file in FILES:
        for number in range(300):
            try:
                image = read_image(url_of(kinds[number % 3](file)))
            except ValueError:
                continue
            assert image.width > 0 < image.height


def test_contents() -> None:
    image = image_part("data:,", "here")
    assert content_of(["a", "b"], "-") == "a-b"
    assert content_of([], "-") == ""
    mixed = content_of(["a", "b", image, "c"], "-")
    assert mixed == [{"type": "text", "text": "a-b"}, image, {"type": "text", "text": "c"}]
    assert join_contents(["x", "", mixed, "y"], "+") == [
        {"type": "text", "text": "x+a-b"},
        image,
        {"type": "text", "text": "c+y"},
    ]
    assert join_contents(["x", "y"], "+") == "x+y"
    assert (text_of(mixed), text_of("a"), text_of(None)) == ("a-b\nc", "a", "")
