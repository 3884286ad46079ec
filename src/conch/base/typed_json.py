"""Decodes JSON into dataclasses by their annotations, strictly: of files that persons and other programs can change."""

import json
import math
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

Record = TypeVar("Record")
_MAX_VALUES = 10_000_000


def check_json_values(content: bytes) -> None:
    """Raise ValueError if untrusted JSON has too many values: one takes up to 100 bytes of memory, and 2 of JSON."""
    if sum(map(content.count, (b",", b"[", b"{"))) > _MAX_VALUES:
        raise ValueError(f"more than {_MAX_VALUES} values")


def decode(kind: type[Record], document: object) -> Record:
    """Return a document as an instance of a dataclass. Raises ValueError with the place of the first problem.

    Annotations are plain types, dataclasses, `tuple`, `dict` with names, unions and `Any`; null is NaN for a float.
    """
    return cast("Record", _decode(kind, document, ""))


def _decode(kind: Any, value: object, place: str) -> Any:
    """Return a JSON value as an instance of a type annotation. Raises ValueError."""
    if kind is Any:
        return value
    origin = get_origin(kind)
    if is_dataclass(kind):
        return _decode_object(kind, value, place)
    if origin is tuple:
        return _decode_tuple(get_args(kind), value, place)
    if origin is dict:
        if not isinstance(value, dict):
            raise _mismatch(place, "an object", value)
        return {key: _decode(get_args(kind)[1], element, f"{place}.{key}") for key, element in value.items()}
    if origin is UnionType:
        return _decode_union(get_args(kind), value, place)
    if kind is float:
        if value is None:
            return math.nan
        if type(value) in (int, float):
            return float(cast("float", value))
        raise _mismatch(place, "a number", value)
    if type(value) is not kind:
        raise _mismatch(place, {int: "an integer", str: "a string", bool: "true or false"}[kind], value)
    return value


def _decode_object(kind: Any, value: object, place: str) -> Any:
    if not isinstance(value, dict):
        raise _mismatch(place, "an object", value)
    types, required = _fields(kind)
    if unknown := sorted(value.keys() - types.keys()):
        raise ValueError(f"{_named(place)} has the unknown field '{unknown[0]}'")
    if missing := sorted(required - value.keys()):
        raise ValueError(f"{_named(place)} lacks the field '{missing[0]}'")
    return kind(**{name: _decode(types[name], element, f"{place}.{name}") for name, element in value.items()})


def _decode_tuple(kinds: tuple[Any, ...], value: object, place: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise _mismatch(place, "an array", value)
    if kinds[-1] is not Ellipsis and len(kinds) != len(value):
        raise ValueError(f"{_named(place)} must have {len(kinds)} elements, not {len(value)}")
    each_kind: Callable[[int], Any] = lambda n: kinds[0] if kinds[-1] is Ellipsis else kinds[n]  # noqa: E731
    return tuple(_decode(each_kind(n), element, f"{place}[{n}]") for n, element in enumerate(value))


def _decode_union(kinds: tuple[Any, ...], value: object, place: str) -> Any:
    if value is None and NoneType in kinds:
        return None
    exact = [kind for kind in kinds if _json_type(kind) is type(value)]
    others = [kind for kind in kinds if kind is not NoneType]
    return _decode(exact[0] if exact else others[0], value, place)


def _json_type(kind: Any) -> Any:
    origin = get_origin(kind) or kind
    return list if origin is tuple else origin


@cache
def _fields(kind: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """Return types by name, and the names of the fields without a default."""
    required = (item.name for item in fields(kind) if item.default is MISSING and item.default_factory is MISSING)
    return get_type_hints(kind), frozenset(required)


def _named(place: str) -> str:
    return place.lstrip(".") or "the document"


def _mismatch(place: str, expected: str, value: object) -> ValueError:
    shown = json.dumps(value)  # also of numbers and surrogates that orjson refuses
    return ValueError(f"{_named(place)} must be {expected}, not {shown[:40]}{'…' if len(shown) > 40 else ''}")
