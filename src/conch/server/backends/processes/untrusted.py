# Compiled by mypyc in wheels.
"""Read messages of child processes, which are not trusted: the types and ranges of all fields are checked.

A model runs code that the server's operator has not written. Whatever its process sends ends that process at worst:
every function here raises WireError for what the protocol does not allow (`conch_child/ipc/wire.py` and `messages`).
"""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, Final

import orjson

from conch.base.errors import Code
from conch.domain.tensor import BYTES, ITEM_SIZES, MAX_RANK
from conch.server.backends.child.conch_child.ipc.wire import Message, WireError, exceeds, shortened

MAX_COUNT: Final = 2**53  # of counters and sizes: exact as a float
_MAX_NAME: Final = 4096  # characters of names of tensors, models and requests
_MIN_INT64, _MAX_INT64 = -(2**63), 2**63 - 1
_LENGTH_BYTES: Final = 4  # before each element of BYTES
_CODES: Final = {code.value: code for code in Code}


def parse_message(header: bytes, max_values: int) -> Message:
    """Return the message of a header."""
    if len(header) > max_values and exceeds(header, max_values):
        raise WireError(f"a header of {len(header)} bytes holds more than {max_values} values")
    try:
        message = orjson.loads(header)
    except orjson.JSONDecodeError as error:
        raise WireError(f"unreadable header: {error}") from None
    if type(message) is not list or not message or type(message[0]) not in (int, str):
        raise WireError(f"a header must be an array that begins with a type, not {orjson.dumps(message)[:40]!r}")
    return tuple(message)


def items(value: Any, count: int, what: str) -> Any:
    """Return an array of `count` items."""
    if type(value) not in (list, tuple) or len(value) != count:
        raise WireError(f"{what} must be an array of {count} items, not {shown(value)}")
    return value


def array(value: Any, what: str) -> Sequence[Any]:
    """Return an array of any length."""
    if type(value) is not list:
        raise WireError(f"{what} must be an array, not {shown(value)}")
    return value


def integer(value: Any, low: int, high: int, what: str) -> int:
    """Return an integer within the range."""
    if type(value) is not int or not low <= value <= high:
        raise WireError(f"{what} must be an integer from {low} to {high}, not {shown(value)}")
    return value


def integers(value: Any, low: int, high: int, what: str) -> list[int]:
    """Return an array of integers within the range."""
    return [integer(item, low, high, what) for item in array(value, what)]


def number(value: Any, what: str) -> float:
    """Return a float, which may be infinite or NaN."""
    if type(value) is float or type(value) is int:
        return float(value)
    if value in ("nan", "inf", "-inf"):
        return float(value)
    raise WireError(f"{what} must be a number, not {shown(value)}")


def finite(value: Any, low: float, high: float, what: str) -> float:
    """Return a number within the range; outside of it, the closest bound."""
    given = number(value, what)
    if not isfinite(given):
        raise WireError(f"{what} must be finite, not {given}")
    return min(max(given, low), high)


def flag(value: Any, what: str) -> bool:
    """Return a boolean."""
    if type(value) is not bool:
        raise WireError(f"{what} must be true or false, not {shown(value)}")
    return value


def name(value: Any, what: str) -> str:
    """Return a name, which is short."""
    if type(value) is not str or len(value) > _MAX_NAME:
        raise WireError(f"{what} must be a text of at most {_MAX_NAME} characters, not {shown(value)}")
    return value


def names(value: Any, what: str) -> list[str]:
    """Return an array of names."""
    return [name(item, what) for item in array(value, what)]


def text(value: Any, what: str) -> str:
    """Return a text of any length."""
    if type(value) is not str:
        raise WireError(f"{what} must be a text, not {shown(value)}")
    return value


def message_text(value: Any, what: str) -> str:
    """Return the text of an error or of a line of the log, shortened."""
    return shortened(text(value, what))


def error_fields(value: Any) -> tuple[Code, str]:
    """Return code and text of an *error*; a code that Triton does not have is INTERNAL."""
    code, given = items(value, 2, "an error")
    return _CODES.get(integer(code, _MIN_INT64, _MAX_INT64, "the code of an error"), Code.INTERNAL), message_text(
        given, "the text of an error"
    )


def parameters(value: Any) -> dict[str, bool | int | float | str]:
    """Return the parameters of a request or response: booleans, 64-bit integers, numbers and texts by name."""
    if value is None:
        return {}
    if type(value) is not dict:
        raise WireError(f"parameters must be an object, not {shown(value)}")
    for key, given in value.items():
        kind = type(given)
        if kind is int:
            integer(given, _MIN_INT64, _MAX_INT64, f"parameter '{key[:40]}'")
        elif kind is not str and kind is not bool and kind is not float:
            raise WireError(f"parameter '{key[:40]}' must be a boolean, a number or a text, not {shown(given)}")
    return value


def labels(value: Any) -> Mapping[str, str]:
    """Return the labels of a metric."""
    if type(value) is not dict:
        raise WireError(f"labels must be an object, not {shown(value)}")
    for key, given in value.items():
        name(key, "a label")
        name(given, "the value of a label")
    return value


def check_tensor(title: Any, datatype: Any, shape: Any, size: Any) -> None:
    """Check the description of a tensor: its name and datatype, and that the size is that of the shape."""
    if type(title) is not str or len(title) > _MAX_NAME:
        name(title, "the name of a tensor")
    if type(shape) is not list or len(shape) > MAX_RANK:
        raise WireError(f"the shape of tensor '{title}' must be an array of at most {MAX_RANK} sizes")
    count = 1
    for dimension in shape:
        if type(dimension) is not int or dimension < 0:
            raise WireError(f"the shape of tensor '{title}' has a dimension {shown(dimension)}")
        count *= dimension
    if type(size) is not int or type(datatype) is not str:
        raise WireError(f"tensor '{title}' has the datatype {shown(datatype)} and the size {shown(size)}")
    if datatype == BYTES:
        # The elements are not counted: they may be many, and the process may change them later.
        valid = size >= count * _LENGTH_BYTES if count else size == 0
    else:
        valid = datatype in ITEM_SIZES and size == count * ITEM_SIZES[datatype]
    if not valid:
        raise WireError(f"tensor '{title}' cannot be {datatype[:40]} of shape {shown(shape)} in {size} bytes")


def shown(value: Any) -> str:
    """Return the beginning of a value for an error."""
    if isinstance(value, (list, tuple, dict)):
        return f"{'an object' if isinstance(value, dict) else 'an array'} of {len(value)} items"
    return repr(value[:40]) + "…" * (len(value) > 40) if isinstance(value, str) else repr(value)
