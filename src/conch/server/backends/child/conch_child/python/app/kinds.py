"""How values of an annotation travel as tensors: datatype, shape, and the conversion in both directions."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import io
import json
import os
import typing
from typing import Any, Callable, Dict, List, Optional, Tuple

import numpy as np

from ..api.datatypes import DTYPES, name_of
from .declare import InvalidInput, Tensor

_MAX_PIXELS = 89_478_485  # of an image, whose file may be much smaller; from more Pillow warns
# Of Pillow's: others start programs for files of clients, such as Ghostscript for PostScript.
_FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
# Counted as their marks in the file: Pillow joins those of Exif one by one, each time with a copy.
_MAX_JPEG_METADATA = 512
_MAX_EXAMPLE_VALUES = 64
# A PNG file of one red pixel, in base64.
_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
_SCALARS: Dict[Any, Tuple[str, Any]] = {float: ("FP64", float), int: ("INT64", int), bool: ("BOOL", bool)}
SUPPORTED = (
    'np.ndarray, NDArray[np.float32], Annotated[np.ndarray, conch.Tensor("FP32", [3, -1])], conch.Image, float, int, '
    "bool, str, bytes, dict, a list of these, a dataclass or a TypedDict"
)


@dataclasses.dataclass
class TensorKind:
    """The tensor of one annotation: `read` makes a value of an array, `write` an array of a value.

    Both are for one item: `shape` has no batch dimension. `item` is the kind of a list's elements, `is_array` whether
    values are arrays, and `is_json` whether the tensor contains JSON. `example` is a value as clients send it in JSON,
    None if that is long or unknown.
    """

    datatype: str
    shape: List[int]
    read: Callable[[Any], Any]
    write: Callable[[Any], Any]
    item: Optional[TensorKind] = None
    is_array: bool = False
    is_json: bool = False
    example: Any = None


def kind_of(annotation: Any) -> TensorKind:
    """Return the kind of an annotation. Raises TypeError with what is wrong about it."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    metadata = getattr(annotation, "__metadata__", ())
    for mark in metadata:
        if isinstance(mark, Tensor) or type(mark).__name__ == "Tensor":
            return _array_kind(mark.datatype, mark.shape)
    if metadata:
        return kind_of(arguments[0])
    if annotation is np.ndarray:
        return _array_kind("FP32", [-1])
    if origin is np.ndarray:
        return _array_kind(_datatype_of(typing.get_args(arguments[-1])), [-1])
    if origin is list:
        return _list_kind(kind_of(arguments[0]))
    if annotation in _SCALARS:
        return _scalar_kind(*_SCALARS[annotation])
    if annotation is str:
        return TensorKind("BYTES", [1], _read_text, lambda value: _one(str(value).encode()), example="hello")
    if annotation is bytes:
        return TensorKind("BYTES", [1], lambda array: array.flat[0], lambda value: _one(bytes(value)), example="hello")
    if annotation in (Any, object):
        return _json_kind(lambda value: value, {})
    if annotation is list:
        return _json_kind(_checked_list, [])
    if annotation is dict or origin is dict:
        return _json_kind(_checked_object, {})
    if isinstance(annotation, type):
        return _class_kind(annotation)
    raise TypeError("'{}' is not supported".format(_name_of(annotation)))


def _class_kind(annotation: type) -> TensorKind:
    if annotation.__name__ == "Image":
        as_pil = annotation.__module__.startswith("PIL")
        read = lambda array: _read_image(array.flat[0], as_pil=as_pil)  # noqa: E731
        return TensorKind("BYTES", [1], read, _no_image_output, example=_PIXEL)
    if dataclasses.is_dataclass(annotation):
        required = [
            field.name
            for field in dataclasses.fields(annotation)
            if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        ]
        return _json_kind(lambda value: annotation(**_checked_object(value)), _example_of(annotation, required))
    if hasattr(annotation, "__total__"):  # a TypedDict
        return _json_kind(_checked_object, _example_of(annotation, list(annotation.__annotations__)))
    if hasattr(annotation, "model_validate"):  # of pydantic
        return _json_kind(annotation.model_validate)
    raise TypeError("'{}' is not supported".format(_name_of(annotation)))


def _example_of(annotated: type, names: List[str]) -> Any:
    """Return an example with these fields, None if one of them has none."""
    try:
        hints = typing.get_type_hints(annotated)
        example = {name: kind_of(hints[name]).example for name in names}
    except (NameError, TypeError):
        return None
    return None if None in example.values() else example


def _name_of(annotation: Any) -> str:
    return getattr(annotation, "__qualname__", "") or str(annotation)


def _datatype_of(scalars: Tuple[Any, ...]) -> str:
    try:
        datatype = name_of(np.dtype(scalars[0])) if scalars else None
    except TypeError:  # of a type variable
        datatype = None
    if datatype is None:
        raise TypeError("the dtype of this array has no tensor type; known are {}".format(_known_dtypes()))
    return datatype


def _known_dtypes() -> str:
    return ", ".join("np.{}".format(dtype.name) for dtype in DTYPES.values() if dtype.name != "object")


def _array_kind(datatype: str, shape: List[int]) -> TensorKind:
    dtype = DTYPES.get(datatype.upper().replace("TYPE_", "").replace("STRING", "BYTES"))
    if dtype is None:
        raise TypeError("datatype '{}' is unknown; known are {}".format(datatype, ", ".join(DTYPES)))
    if not shape:
        raise TypeError("the shape of an array needs one dimension at least, such as [-1]")

    def write(value: Any) -> Any:
        array = np.asarray(value)
        return array if array.dtype == dtype else array.astype(dtype)

    example: Any = "hello" if datatype == "BYTES" else True if datatype == "BOOL" else 1
    sizes = [2 if size < 0 else size for size in shape]
    for size in reversed(sizes):
        example = [example] * size
    if int(np.prod(sizes)) > _MAX_EXAMPLE_VALUES:
        example = None
    return TensorKind(name_of(dtype) or "", shape, lambda array: array, write, is_array=True, example=example)


def _scalar_kind(datatype: str, convert: Callable[[Any], Any]) -> TensorKind:
    dtype = DTYPES[datatype]
    return TensorKind(
        datatype,
        [1],
        lambda array: convert(array.flat[0]),
        lambda value: np.array([value], dtype),
        example=convert(1),
    )


def _list_kind(item: TensorKind) -> TensorKind:
    if item.shape != [1]:
        raise TypeError("a list must have elements of a fixed size, such as str or float; use an array")

    def read(array: Any) -> Any:
        return [item.read(array[index : index + 1]) for index in range(len(array))]

    def write(values: Any) -> Any:
        arrays = [item.write(value) for value in values]
        return np.concatenate(arrays) if arrays else np.empty(0, DTYPES[item.datatype])

    example = None if item.example is None else [item.example]
    return TensorKind(item.datatype, [-1], read, write, item=item, is_json=item.is_json, example=example)


def _one(element: bytes) -> Any:
    array = np.empty(1, np.object_)
    array[0] = element
    return array


def _read_text(array: Any) -> str:
    try:
        return str(array.flat[0].decode())
    except UnicodeDecodeError as error:
        raise InvalidInput("it is not UTF-8 text: {}".format(error)) from None


def _json_kind(convert: Callable[[Any], Any], example: Any = None) -> TensorKind:
    def read(array: Any) -> Any:
        try:
            value = json.loads(array.flat[0])
        except ValueError as error:
            raise InvalidInput("it is not JSON: {}".format(error)) from None
        try:
            return convert(value)
        except (TypeError, ValueError) as error:
            raise InvalidInput(str(error)) from None

    def write(value: Any) -> Any:
        return _one(json.dumps(value, default=_plain).encode())

    return TensorKind("BYTES", [1], read, write, is_json=True, example=example)


def _checked_object(value: Any) -> Any:
    if not isinstance(value, dict):
        raise InvalidInput("it must be a JSON object")
    return value


def _checked_list(value: Any) -> Any:
    if not isinstance(value, list):
        raise InvalidInput("it must be a JSON array")
    return value


def _plain(value: Any) -> Any:
    """Return what JSON can express of a value. Raises TypeError."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if hasattr(value, "model_dump"):  # of pydantic
        return value.model_dump(mode="json")
    raise TypeError("a {} cannot be written as JSON".format(type(value).__name__))


def _no_image_output(_: Any) -> Any:
    raise TypeError("an image cannot be returned: return its file as bytes, or the array as np.ndarray")


def _read_image(data: bytes, *, as_pil: bool) -> Any:
    """Decode an image file, or one in base64, as JSON has it. Raises InvalidInput."""
    # No image file consists of the characters of base64 only.
    data = _from_base64(data) or data
    try:
        return _decoded(data, as_pil=as_pil)
    except Exception as error:  # decoders raise all kinds for files that others have made
        text = str(error) if "pixels" in str(error) else "it is neither an image file nor one in base64"
        raise InvalidInput(text) from None


def _from_base64(data: bytes) -> bytes:
    try:
        return base64.b64decode(data.partition(b"base64,")[2] or data, validate=True)
    except binascii.Error:
        return b""


def _decoded(data: bytes, *, as_pil: bool) -> Any:
    try:
        import PIL.Image
    except ImportError:
        return _decoded_by_opencv(data)
    if data.startswith(b"\xff\xd8\xff") and data.count(b"\xff\xe1") > _MAX_JPEG_METADATA:
        raise ValueError("it has more than {} segments of metadata".format(_MAX_JPEG_METADATA))
    PIL.Image.init()
    formats = [name for name in _FORMATS if name in PIL.Image.OPEN]
    with PIL.Image.open(io.BytesIO(data), formats=formats) as image:
        if image.width * image.height > _MAX_PIXELS:
            raise ValueError("the image has {} pixels, the limit is {}".format(image.width * image.height, _MAX_PIXELS))
        converted = image.convert("RGB")
    return converted if as_pil else np.asarray(converted)


def _decoded_by_opencv(data: bytes) -> Any:
    os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", str(_MAX_PIXELS))
    import cv2

    image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    if image is None:
        raise ValueError("not an image")
    return image[:, :, ::-1]
