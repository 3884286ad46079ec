"""Send the images of a folder: encoded as they are, or decoded to what a model takes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conch.domain.tensor import BYTES, Tensor, pack_bytes
from conch.measure.bench.input_settings import InputError, InputSettings
from conch.measure.bench.inputs.tensors import InputRow, InputStreams, TensorGenerator, full_shape, to_wire
from conch.measure.bench.targets.target import TargetModel, TensorMetadata

_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff"})
_CHANNELS = (1, 3)
_IMAGENET_MEAN = np.array((0.485, 0.456, 0.406), np.float32)
_IMAGENET_DEVIATION = np.array((0.229, 0.224, 0.225), np.float32)
NORMALIZATIONS = ("unit", "signed", "imagenet", "none")


def read_images(model: TargetModel, settings: InputSettings) -> InputStreams:
    """Return a row for each image of the folder, up to the number of distinct requests. Raises InputError."""
    folder = Path(settings.images or "")
    if not folder.is_dir():
        raise InputError(f"--images {folder} is not a folder")
    files = sorted(file for file in folder.iterdir() if file.suffix.lower() in _SUFFIXES)
    if not files:
        raise InputError(f"--images {folder} has no images ({', '.join(sorted(_SUFFIXES))})")
    form = image_input(model)
    generator = TensorGenerator(settings)
    others = [other for other in model.inputs if other is not form and not other.optional]
    kept = files[: max(settings.distinct_requests, settings.batch_size)]
    rows = []
    for file in kept:
        tensors = {form.name: _tensor(file, form, model, settings)}
        for other in others:
            shape = full_shape(other, model, settings)
            tensors[other.name] = generator.tensor(replace(other, shape=shape[1:] if model.batched else shape))
        rows.append(InputRow(tensors))
    left = len(files) - len(kept)
    notes = (f"the first {len(kept)} of {len(files)} images are sent (--distinct)",) if left else ()
    return InputStreams([rows], notes=notes)


def image_input(model: TargetModel) -> TensorMetadata:
    """Return the input for an image: of encoded bytes, or with three dimensions of pixels. Raises InputError."""
    for form in model.inputs:
        dims = form.shape[1:] if model.batched else form.shape
        if not form.optional and (takes_encoded(form, model) or sum(dim != 1 for dim in dims) >= 2):
            return form
    names = ", ".join(f"{form.name} {form.datatype}{list(form.shape)}" for form in model.inputs)
    raise InputError(f"--images: model '{model.name}' has no input for images: {names}")


def takes_encoded(form: TensorMetadata, model: TargetModel) -> bool:
    """Whether an input takes the bytes of an image file."""
    dims = form.shape[1:] if model.batched else form.shape
    return form.datatype == BYTES or (form.datatype == "UINT8" and len(dims) == 1 and dims[0] < 0)


def _tensor(file: Path, form: TensorMetadata, model: TargetModel, settings: InputSettings) -> Tensor:
    dims = form.shape[1:] if model.batched else form.shape
    if takes_encoded(form, model):
        data = file.read_bytes()
        if form.datatype == BYTES:
            return Tensor(form.name, BYTES, (1,) * len(dims), pack_bytes([data]))
        return Tensor(form.name, form.datatype, (len(data),), data)
    shape = full_shape(form, model, settings)
    dims = shape[1:] if model.batched else shape
    pixels = decoded(file, dims, form.layout)
    values = normalized(pixels, settings.normalization) if form.datatype.startswith(("FP", "BF")) else pixels
    channels_first = _channels_first(dims, form.layout)
    ordered = np.moveaxis(values, -1, 0) if channels_first else values
    return Tensor(form.name, form.datatype, dims, to_wire(ordered.reshape(dims), form.datatype))


def _channels_first(dims: tuple[int, ...], layout: str) -> bool:
    """Whether the first of three dimensions is the colours: by the declared layout, else by the size."""
    if layout:
        return layout == "NCHW"
    sizes = dims[-3:]
    return sizes[0] in _CHANNELS and sizes[-1] not in _CHANNELS


def decoded(file: Path, dims: tuple[int, ...], layout: str) -> NDArray[np.uint8]:
    """Return the pixels of an image, resized to what the dimensions have: height, width, channels. RGB.

    Raises InputError for dimensions that are not those of an image.
    """
    sizes = dims[-3:] if len(dims) >= 3 else (1, *dims)
    if _channels_first(sizes, layout):
        channels, height, width = sizes
    else:
        height, width, channels = sizes
    if channels not in _CHANNELS:
        raise InputError(f"--images: {list(dims)} are not the dimensions of an image with 1 or 3 channels")
    return _read(file, width, height, channels)


def _read(file: Path, width: int, height: int, channels: int) -> NDArray[np.uint8]:
    """Decode with Pillow, else with OpenCV."""
    try:
        from PIL import Image
    except ModuleNotFoundError:
        return _read_with_opencv(file, width, height, channels)
    try:
        with Image.open(file) as image:
            resized = image.convert("L" if channels == 1 else "RGB").resize((width, height))
            return np.asarray(resized, np.uint8).reshape(height, width, channels)
    except (OSError, ValueError) as error:
        raise InputError(f"--images: {file} cannot be decoded: {error}") from None


def _read_with_opencv(file: Path, width: int, height: int, channels: int) -> NDArray[np.uint8]:
    try:
        import cv2
    except ModuleNotFoundError:
        raise InputError("--images: the model takes decoded images, which needs Pillow: pip install pillow") from None
    image: Any = cv2.imread(str(file), cv2.IMREAD_GRAYSCALE if channels == 1 else cv2.IMREAD_COLOR)
    if image is None:
        raise InputError(f"--images: {file} cannot be decoded")
    resized = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
    ordered = resized if channels == 1 else resized[:, :, ::-1]
    return np.ascontiguousarray(ordered, np.uint8).reshape(height, width, channels)


def normalized(pixels: NDArray[np.uint8], how: str) -> NDArray[np.float32]:
    """Return pixels as floats. Raises InputError for an unknown normalisation."""
    values = pixels.astype(np.float32)
    if how == "none":
        return values
    unit = values / np.float32(255)
    if how == "unit":
        return unit
    if how == "signed":
        return unit * np.float32(2) - np.float32(1)
    if how == "imagenet":
        return np.asarray((unit - _IMAGENET_MEAN) / _IMAGENET_DEVIATION, np.float32)
    raise InputError(f"--normalization {how} is not one of {', '.join(NORMALIZATIONS)}")
