"""Certificates as JSON: written atomically, read strictly."""

import math
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, cast, get_args, get_origin, get_type_hints

import orjson

from conch.base.errors import InvalidRequest
from conch.base.files.atomic import replace_file
from conch.domain.benchmark_document import FORMAT, parse_benchmark, read_benchmark
from conch.measure.bench.report.certificate import Certificate


def write_json(certificate: Certificate, path: Path) -> None:
    """Write a certificate atomically. Raises OSError; what was at the path stays then."""
    replace_file(path, to_json(certificate))


def to_json(certificate: Certificate, *, indent: bool = True) -> bytes:
    """Return a certificate as JSON. Numbers that are not finite become null."""
    document = {"format": FORMAT, **{item.name: getattr(certificate, item.name) for item in fields(certificate)}}
    form = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE if indent else 0
    return orjson.dumps(document, option=form | orjson.OPT_SERIALIZE_NUMPY)


def read_certificate(path: Path) -> Certificate:
    """Read a certificate from a JSON file, or from an HTML file that holds it. Raises InvalidRequest."""
    document = read_benchmark(path)
    try:
        return cast("Certificate", _decode(Certificate, document, ""))
    except ValueError as error:
        raise InvalidRequest(f"'{path}' is not a certificate of conch bench: {error}") from None


def from_json(content: bytes) -> Certificate:
    """Decode a certificate. Raises ValueError with the place of the first problem."""
    return cast("Certificate", _decode(Certificate, parse_benchmark(content), ""))


def _decode(kind: Any, value: object, place: str) -> Any:
    """Return a JSON value as an instance of a type annotation. Raises ValueError."""
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
    exact = [kind for kind in kinds if type(value) is kind]
    others = [kind for kind in kinds if kind is not NoneType]
    return _decode(exact[0] if exact else others[0], value, place)


@cache
def _fields(kind: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """Return types by name, and the names of the fields without a default."""
    required = (item.name for item in fields(kind) if item.default is MISSING and item.default_factory is MISSING)
    return get_type_hints(kind), frozenset(required)


def _named(place: str) -> str:
    return place.lstrip(".") or "the document"


def _mismatch(place: str, expected: str, value: object) -> ValueError:
    shown = orjson.dumps(value).decode()
    return ValueError(f"{_named(place)} must be {expected}, not {shown[:40]}{'…' if len(shown) > 40 else ''}")
