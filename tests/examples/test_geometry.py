"""A rectangle drawn by hand comes back to where it was drawn: letterbox, canvas and way back together."""

from __future__ import annotations

import numpy as np
import pytest
from detections import to_original
from letterbox import PAD_VALUE, Letterbox
from normalise import MEAN, STD
from prepare import prepare

from .drawing import STORED, black_with_box, encode, red_extent

CASES = [
    # width, height, box
    (640, 640, (100, 200, 300, 260)),
    (1920, 1080, (37, 501, 733, 988)),
    (1080, 1920, (37, 501, 733, 988)),
    (333, 517, (11, 23, 129, 401)),
    (517, 333, (0, 0, 517, 40)),
    (64, 48, (10, 12, 30, 40)),
    (3999, 411, (1000, 100, 2500, 400)),
    (97, 4000, (20, 50, 90, 3900)),
]


@pytest.mark.parametrize(("width", "height", "box"), CASES)
def test_box_drawn_by_hand_maps_back_to_its_place(width: int, height: int, box: tuple[int, int, int, int]) -> None:
    outputs = prepare([encode(black_with_box(width, height, box))], canvas=640, max_side=4000)
    seen = red_extent(outputs["IMAGE"][0])
    back = to_original(seen, outputs["LETTERBOX"][0], outputs["ORIGINAL_SHAPE"][0])[0]
    one_canvas_pixel = 1 / outputs["LETTERBOX"][0][:2]
    assert np.all(np.abs(back - box) <= np.tile(one_canvas_pixel, 2) + 0.01), (back, box)


@pytest.mark.parametrize("orientation", STORED)
@pytest.mark.parametrize("file_format", ["JPEG", "PNG"])
def test_boxes_belong_to_the_upright_image(orientation: int, file_format: str) -> None:
    box = (60, 30, 220, 90)
    file = encode(black_with_box(500, 300, box), file_format, orientation)
    outputs = prepare([file], canvas=640, max_side=4000)
    assert outputs["ORIGINAL_SHAPE"].tolist() == [[300, 500]]
    back = to_original(red_extent(outputs["IMAGE"][0]), outputs["LETTERBOX"][0], outputs["ORIGINAL_SHAPE"][0])[0]
    assert np.all(np.abs(back - box) <= 1.5), (back, box)


def test_images_of_one_batch_keep_their_own_geometry() -> None:
    files = [encode(black_with_box(width, height, box)) for width, height, box in CASES]
    batch = prepare(files, canvas=640, max_side=4000)
    for index, file in enumerate(files):
        alone = prepare([file], canvas=640, max_side=4000)
        for name, values in alone.items():
            assert np.array_equal(values[0], batch[name][index]), (index, name)


def test_image_lies_in_the_middle_of_grey_padding() -> None:
    outputs = prepare([encode(np.full((320, 640, 3), 255, dtype=np.uint8))], canvas=640, max_side=4000)
    assert outputs["LETTERBOX"].tolist() == [[1.0, 1.0, 0.0, 160.0]]
    grey = (PAD_VALUE / 255 - np.array(MEAN)) / STD
    white = (1 - np.array(MEAN)) / STD
    image = outputs["IMAGE"][0]
    assert np.allclose(image[:, :160], grey[:, None, None], atol=1e-5)
    assert np.allclose(image[:, 160:480], white[:, None, None], atol=1e-5)
    assert np.allclose(image[:, 480:], grey[:, None, None], atol=1e-5)


def test_channels_arrive_as_red_green_blue() -> None:
    colour = np.full((640, 640, 3), (250, 120, 10), dtype=np.uint8)
    pixel = prepare([encode(colour)], canvas=640, max_side=4000)["IMAGE"][0, :, 320, 320]
    assert np.allclose(pixel * STD + MEAN, np.array((250, 120, 10)) / 255, atol=1e-5)


@pytest.mark.parametrize(("width", "height"), [(1, 1), (4000, 1), (1, 4000), (641, 639), (1279, 853)])
def test_every_size_fits_on_the_canvas(width: int, height: int) -> None:
    letterbox = Letterbox.fit(width, height)
    assert letterbox.place(np.zeros((height, width, 3), dtype=np.uint8)).shape == (640, 640, 3)
    assert max(letterbox.width, letterbox.height) == 640


def test_boxes_are_clipped_to_the_image() -> None:
    letterbox = Letterbox.fit(1280, 640)
    beyond = np.array([[-50, 100, 700, 600]], dtype=np.float32)
    clipped = to_original(beyond, letterbox.as_tensor(), np.array((640, 1280), dtype=np.int32))
    assert clipped.tolist() == [[0, 0, 1280, 640]]
