"""Values of formulas, and what operators and functions of expr-lang return for them: numbers, booleans, nil, lists."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, fmod, isfinite
from statistics import mean, median
from typing import Literal, TypeAlias

Value: TypeAlias = "int | float | bool | list[Value] | None"
Values: TypeAlias = Mapping[str, Value]

_MAX_ITEMS = 10_000
_MANY = 1000


class FormulaError(ArithmeticError):
    """A formula has no value for its operands, such as a division by zero."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function: fewest and most arguments, what it returns, and its code."""

    arguments: tuple[int, int]
    kind: Literal["number", "bool", "list", "any"]
    function: Callable[..., Value] = lambda: None


def is_condition(value: Value) -> bool:
    """Return a boolean. Raises FormulaError for other values, which expr-lang does not convert."""
    if not isinstance(value, bool):
        raise FormulaError(f"{_shown(value)} is not a condition")
    return value


def to_float(value: Value) -> float:
    """Return the number that KEDA reports: it wraps formulas in float(). Raises FormulaError."""
    number = float(_number(value))
    if not isfinite(number):
        raise FormulaError(f"the value is {number:g}")
    return number


def _number(value: Value) -> float:
    if value is None or isinstance(value, bool | list):
        raise FormulaError(f"{_shown(value)} is not a number")
    return value


def _integer(value: Value) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise FormulaError(f"{_shown(value)} is not an integer; use int(…)")
    return value


def _list(value: Value) -> list[Value]:
    if not isinstance(value, list):
        raise FormulaError(f"{_shown(value)} is not a list")
    return value


def _shown(value: Value) -> str:
    if value is None:
        return "nil"
    return str(value).lower() if isinstance(value, bool) else "a list" if isinstance(value, list) else f"{value:g}"


def _numeric(function: Callable[[float, float], float]) -> Callable[[Value, Value], Value]:
    return lambda left, right: function(_number(left), _number(right))


def _remainder(left: float, right: float) -> float:
    return int(fmod(_integer(left), _integer(right)))


def _power(base: float, exponent: float) -> float:
    result: float | complex = float(base) ** float(exponent)
    if isinstance(result, complex):
        raise FormulaError("the root of a negative number")
    return result


def _range(first: Value, last: Value) -> Value:
    low, high = _integer(first), _integer(last)
    if high - low >= _MAX_ITEMS:
        raise FormulaError(f"a list of more than {_MAX_ITEMS} items")
    return list(range(low, high + 1))


def _item(sequence: Value, index: Value) -> Value:
    items, place = _list(sequence), _integer(index)
    if not -len(items) <= place < len(items):
        raise FormulaError(f"the list has no item {place}")
    return items[place]


def _equal(left: Value, right: Value) -> bool:
    if isinstance(left, bool) is not isinstance(right, bool):
        return False  # True is 1 in Python
    return left == right


OPERATORS: dict[str, Callable[[Value, Value], Value]] = {
    "==": _equal,
    "!=": lambda left, right: not _equal(left, right),
    "<": _numeric(lambda left, right: left < right),
    "<=": _numeric(lambda left, right: left <= right),
    ">": _numeric(lambda left, right: left > right),
    ">=": _numeric(lambda left, right: left >= right),
    "in": lambda item, sequence: any(_equal(item, each) for each in _list(sequence)),
    "+": _numeric(lambda left, right: left + right),
    "-": _numeric(lambda left, right: left - right),
    "*": _numeric(lambda left, right: left * right),
    "/": _numeric(lambda left, right: float(left) / right),
    "%": _numeric(_remainder),
    "**": _numeric(_power),
    "^": _numeric(_power),
    "..": _range,
    "[]": _item,
}


def _flat(values: Sequence[Value]) -> list[float]:
    found: list[float] = []
    for value in values:
        found += _flat(value) if isinstance(value, list) else [_number(value)]
    return found


def _largest(*values: Value) -> float:
    return max(_flat(values))


def _smallest(*values: Value) -> float:
    return min(_flat(values))


def _mean(*values: Value) -> float:
    flat = _flat(values)
    return float(mean(flat)) if flat else 0.0


def _median(*values: Value) -> float:
    flat = _flat(values)
    return float(median(flat)) if flat else 0.0


def _round(value: Value) -> float:
    number = _number(value)
    return float(floor(abs(number) + 0.5)) * (-1 if number < 0 else 1)  # halves away from zero, as Go


_MANY_NUMBERS = (1, _MANY)
FUNCTIONS: dict[str, Function] = {
    "abs": Function((1, 1), "number", lambda value: abs(_number(value))),
    "ceil": Function((1, 1), "number", lambda value: float(ceil(_number(value)))),
    "floor": Function((1, 1), "number", lambda value: float(floor(_number(value)))),
    "round": Function((1, 1), "number", _round),
    "int": Function((1, 1), "number", lambda value: int(_number(value))),
    "float": Function((1, 1), "number", lambda value: float(_number(value))),
    "max": Function(_MANY_NUMBERS, "number", _largest),
    "min": Function(_MANY_NUMBERS, "number", _smallest),
    "mean": Function(_MANY_NUMBERS, "number", _mean),
    "median": Function(_MANY_NUMBERS, "number", _median),
    "len": Function((1, 1), "number", lambda value: len(_list(value))),
    "first": Function((1, 1), "any", lambda value: (_list(value) or [None])[0]),
    "last": Function((1, 1), "any", lambda value: (_list(value) or [None])[-1]),
}
# Functions whose second argument is evaluated for each item, which is # there.
PREDICATES: dict[str, Function] = {
    "all": Function((2, 2), "bool"),
    "any": Function((2, 2), "bool"),
    "none": Function((2, 2), "bool"),
    "one": Function((2, 2), "bool"),
    "count": Function((1, 2), "number"),
    "sum": Function((1, 2), "number"),
    "filter": Function((2, 2), "list"),
    "map": Function((2, 2), "list"),
    "find": Function((2, 2), "any"),
}


def call_predicate(name: str, sequence: Value, predicate: Callable[[Values], Value] | None, values: Values) -> Value:
    """Return what a function of `PREDICATES` does. Raises FormulaError."""
    items = _list(sequence)
    results = items if predicate is None else [predicate({**values, "#": item}) for item in items]
    if name == "map":
        return results
    if name == "sum":
        return sum(map(_number, results))
    fulfilled = [item for item, result in zip(items, results, strict=True) if is_condition(result)]
    found: dict[str, Value] = {
        "all": len(fulfilled) == len(items),
        "any": bool(fulfilled),
        "none": not fulfilled,
        "one": len(fulfilled) == 1,
        "count": len(fulfilled),
        "filter": fulfilled,
        "find": fulfilled[0] if fulfilled else None,
    }
    return found[name]
