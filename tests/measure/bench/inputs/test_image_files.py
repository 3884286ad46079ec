"""Images of a folder: as they are, and decoded for models that take pixels."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from conch.domain.tensor import unpack_bytes
from conch.measure.bench.input_settings import InputError, InputSettings
from conch.measure.bench.targets.target import TensorMetadata
from tests.measure.bench.inputs.making import decoded, fixed, model, target

RED, GREEN = (255, 0, 0), (0, 255, 0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Image.new("RGB", (20, 10), RED).save(tmp_path / "a.png")
    Image.new("RGB", (8, 8), GREEN).save(tmp_path / "b.png")
    (tmp_path / "notes.txt").write_text("no image")
    return tmp_path


def pixels(folder: Path, form: TensorMetadata, **more: Any) -> list[np.ndarray]:
    made = target(model(form, batch=4))
    requests = [decoded(request) for request in fixed(made, InputSettings(images=str(folder), **more))]
    dtype = {"FP32": "<f4", "FP16": "<f2", "UINT8": "u1"}[form.datatype]
    return [np.frombuffer(request.inputs[0].data, dtype).reshape(request.inputs[0].shape) for request in requests]


@pytest.mark.parametrize(
    "form", [TensorMetadata("IMAGE", "BYTES", (-1, 1)), TensorMetadata("IMAGE", "UINT8", (-1, -1))]
)
def test_encoded_images_are_sent_as_they_are(folder: Path, form: TensorMetadata) -> None:
    made = target(model(form, batch=4))
    request = decoded(fixed(made, InputSettings(images=str(folder)))[0])
    data = bytes(request.inputs[0].data)
    assert (unpack_bytes(data)[0] if form.datatype == "BYTES" else data) == (folder / "a.png").read_bytes()


@pytest.mark.parametrize(("layout", "shape"), [("NCHW", (-1, 3, 4, 6)), ("NHWC", (-1, 4, 6, 3)), ("", (-1, 3, 4, 6))])
def test_pixels_have_the_layout_of_the_model(folder: Path, layout: str, shape: tuple[int, ...]) -> None:
    red, green = pixels(folder, TensorMetadata("IMAGE", "FP32", shape, layout=layout))
    assert red.shape == (1, *shape[1:])
    axis = 1 if shape[1] == 3 else 3
    assert np.moveaxis(red, axis, -1)[0, 0, 0].tolist() == [1, 0, 0]
    assert np.moveaxis(green, axis, -1)[0, 3, 5].tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("how", "red"),
    [("unit", [1, 0, 0]), ("signed", [1, -1, -1]), ("none", [255, 0, 0]), ("imagenet", [2.25, -2.04, -1.8])],
)
def test_normalisations(folder: Path, how: str, red: list[float]) -> None:
    image = pixels(folder, TensorMetadata("IMAGE", "FP32", (-1, 3, 2, 2)), normalization=how)[0]
    assert image[0, :, 0, 0].tolist() == pytest.approx(red, abs=0.01)


def test_variable_sizes_need_a_shape_and_bytes_are_not_normalised(folder: Path) -> None:
    form = TensorMetadata("IMAGE", "UINT8", (-1, -1, -1, 3))
    with pytest.raises(InputError, match=r"input 'IMAGE' has variable dimensions .* --shape IMAGE:N,N,3"):
        pixels(folder, form)
    (red, _) = pixels(folder, form, shapes={"IMAGE": (5, 7, 3)}, batch_size=2)
    assert red.shape == (2, 5, 7, 3)
    assert red[:, 0, 0].tolist() == [list(RED), list(GREEN)]


def test_fewer_images_than_the_folder_has_are_noted(folder: Path) -> None:
    from conch.measure.bench.inputs.build import prepare_inputs

    made = target(model(TensorMetadata("IMAGE", "BYTES", (1,))))
    prepared = prepare_inputs(made, InputSettings(images=str(folder), distinct=1))
    assert prepared.notes == ("the first 1 of 2 images are sent (--distinct)",)


def test_errors(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    empty = tmp_path_factory.mktemp("empty")
    image = model(TensorMetadata("IMAGE", "FP32", (3, 4, 4)))
    with pytest.raises(InputError, match="has no images"):
        fixed(target(image), InputSettings(images=str(empty)))
    with pytest.raises(InputError, match="is not a folder"):
        fixed(target(image), InputSettings(images=str(folder / "a.png")))
    with pytest.raises(InputError, match=r"no input for images: X FP32\[10\]"):
        fixed(target(model(TensorMetadata("X", "FP32", (10,)))), InputSettings(images=str(folder)))
    (folder / "c.jpg").write_bytes(b"not an image")
    with pytest.raises(InputError, match=r"c\.jpg cannot be decoded"):
        fixed(target(image), InputSettings(images=str(folder)))


def test_missing_packages_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "PIL", None)
    red, _ = pixels(folder, TensorMetadata("IMAGE", "FP32", (-1, 3, 2, 2)))  # by OpenCV
    assert red[0, :, 0, 0].tolist() == [1, 0, 0]
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(InputError, match="needs Pillow: pip install pillow"):
        pixels(folder, TensorMetadata("IMAGE", "FP32", (-1, 3, 2, 2)))
