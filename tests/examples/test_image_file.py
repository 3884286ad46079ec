"""What clients send as an image, and what is made of it."""

from __future__ import annotations

import io

import numpy as np
import pytest
from image_file import ImageRefused, decode
from PIL import Image, ImageCms
from prepare import prepare

from .drawing import black_with_box, encode, png_of_one_pixel_claiming


def in_colour(width: int = 40, height: int = 30) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


def saved(image: Image.Image, file_format: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, file_format, **options)
    return file.getvalue()


def test_colours_are_kept() -> None:
    assert np.array_equal(decode(encode(in_colour()), 4000)[:, :, ::-1], in_colour())


def test_greyscale_becomes_three_equal_channels() -> None:
    grey = in_colour()[:, :, 0]
    assert np.array_equal(decode(saved(Image.fromarray(grey)), 4000), np.dstack([grey] * 3))


def test_sixteen_bits_become_eight() -> None:
    deep = np.arange(0, 65536, 256, dtype=np.uint16).reshape(16, 16)
    assert np.array_equal(decode(saved(Image.fromarray(deep)), 4000)[:, :, 0], (deep >> 8).astype(np.uint8))


def test_transparency_shows_the_grey_of_the_padding() -> None:
    clear, half, solid = (255, 0, 0, 0), (214, 14, 114, 128), (1, 2, 3, 255)
    pixels = np.array([[clear, half, solid]], dtype=np.uint8)
    shown = decode(saved(Image.fromarray(pixels)), 4000)[0, :, ::-1]
    assert np.abs(shown.astype(int) - [(114, 114, 114), (164, 64, 114), (1, 2, 3)]).max() <= 1


def test_transparent_palette_is_understood() -> None:
    image = Image.fromarray(np.array([[0, 1]], dtype=np.uint8), "P")
    image.putpalette([255, 0, 0, 0, 0, 255])
    shown = decode(saved(image, transparency=0), 4000)[0, :, ::-1]
    assert shown.tolist() == [[114, 114, 114], [0, 0, 255]]


def test_transparent_image_is_turned_as_well() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    image = Image.fromarray(np.full((10, 20, 4), 200, dtype=np.uint8))
    assert decode(saved(image, exif=exif), 4000).shape == (20, 10, 3)


def test_colour_profile_is_not_applied() -> None:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()
    plain, profiled = (decode(encode(in_colour(), icc_profile=icc), 4000) for icc in (None, profile))
    assert np.array_equal(plain, profiled)


@pytest.mark.parametrize("size", [(4001, 10), (10, 4001), (12000, 8000), (65000, 65000), (2**31 - 1, 2**31 - 1)])
def test_size_is_refused_before_a_pixel_is_decoded(size: tuple[int, int]) -> None:
    # The pixels are missing: had anything tried to decode them, the file would be "damaged", not "large".
    with pytest.raises(ImageRefused, match=r"at most 4000|too large"):
        decode(png_of_one_pixel_claiming(*size), 4000)


def test_largest_size_is_taken() -> None:
    assert decode(saved(Image.new("L", (4000, 5))), 4000).shape == (5, 4000, 3)


@pytest.mark.parametrize("kept", [0.05, 0.5, 0.9])
@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP"])
def test_incomplete_file_is_refused(kept: float, file_format: str) -> None:
    file = encode(in_colour(200, 200), file_format)
    with pytest.raises(ImageRefused, match="damaged"):
        decode(file[: int(len(file) * kept)], 4000)


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        (b"", "0 bytes"),
        (b"GIF89a" + b"\0" * 50, "are not an image of a supported format: JPEG, PNG, BMP, WEBP"),
        (b"%PDF-1.7", "8 bytes starting with 25 50 44 46"),
        (b"\xff\xd8\xff\xe0", "are not an image of a supported format"),
        (np.random.default_rng(1).bytes(5000), "are not an image of a supported format"),
    ],
)
def test_data_that_is_not_an_image_is_refused_with_its_reason(file: bytes, reason: str) -> None:
    with pytest.raises(ImageRefused, match=reason):
        decode(file, 4000)


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "BMP", "WEBP"])
def test_damaged_bytes_give_a_picture_or_a_refusal(file_format: str) -> None:
    rng = np.random.default_rng(2)
    file = np.frombuffer(encode(in_colour(), file_format, orientation=6), dtype=np.uint8)
    for _ in range(200):
        damaged = file.copy()
        damaged[rng.integers(len(file), size=4)] = rng.integers(256, size=4)
        try:
            picture = decode(damaged.tobytes(), 4000)
        except ImageRefused:
            continue
        assert picture.ndim == 3


def test_refusal_names_the_image_of_the_batch() -> None:
    good = encode(black_with_box(20, 20, (1, 1, 5, 5)))
    with pytest.raises(ImageRefused, match=r"RAW_IMAGE\[2\]: image is empty"):
        prepare([good, good, b""], canvas=640, max_side=4000)
