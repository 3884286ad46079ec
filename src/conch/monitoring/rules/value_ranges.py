"""Between which values the results of a query lie."""

from collections.abc import Callable
from math import inf, isnan
from typing import TypeAlias

from conch.monitoring.promql import (
    COMPARISONS,
    SET_OPERATORS,
    Aggregation,
    Binary,
    Call,
    Negation,
    Node,
    Number,
    Parentheses,
    Selector,
    Subquery,
)

Range: TypeAlias = tuple[float, float]

_ANY: Range = (-inf, inf)
_NOT_NEGATIVE: Range = (0, inf)
_RATES = ("rate", "irate", "increase", "resets", "changes", "count_over_time", "time", "timestamp", "abs", "sqrt")
_SPREADS = ("stddev", "stdvar", "stddev_over_time", "stdvar_over_time")
_UNBOUNDED = ("delta", "idelta", "deriv", "predict_linear", "ln", "log2", "log10", "sgn", "exp", "holt_winters")
_KEEPS = ("avg", "min", "max", "quantile", "topk", "bottomk", "limitk", "any")


def value_range(node: Node, of_selector: Callable[[Selector], Range]) -> Range:
    """Return the smallest and the largest possible value of an expression."""
    match node:
        case Number():
            return _ANY if isnan(node.value) else (node.value, node.value)
        case Selector():
            return of_selector(node)
        case Parentheses() | Subquery():
            return value_range(node.expr, of_selector)
        case Negation():
            low, high = value_range(node.expr, of_selector)
            return -high, -low
        case Call():
            return _of_call(node, of_selector)
        case Aggregation():
            return _of_aggregation(node, value_range(node.expr, of_selector))
        case Binary():
            return _of_binary(node, of_selector)
        case _:
            return _ANY


def never(operator: str, left: Range, right: Range) -> bool:
    """Return whether a comparison is false for all values."""
    match operator:
        case ">":
            return left[1] <= right[0]
        case ">=":
            return left[1] < right[0]
        case "<":
            return left[0] >= right[1]
        case "<=":
            return left[0] > right[1]
        case "==":
            return left[1] < right[0] or left[0] > right[1]
        case _:
            return left[0] == left[1] == right[0] == right[1]


def _of_call(node: Call, of_selector: Callable[[Selector], Range]) -> Range:
    name = node.function
    if name in _RATES or name in _SPREADS or not node.arguments:
        return _NOT_NEGATIVE
    if name in ("absent", "absent_over_time", "present_over_time"):
        return 1, 1
    if name in _UNBOUNDED:
        return _ANY
    ranges = [value_range(each, of_selector) for each in node.arguments]
    if name in ("histogram_quantile", "quantile_over_time"):
        return ranges[-1]
    if name == "clamp_min":
        return max(ranges[0][0], ranges[1][0]), max(ranges[0][1], ranges[1][1])
    if name == "clamp_max":
        return min(ranges[0][0], ranges[1][0]), min(ranges[0][1], ranges[1][1])
    if name == "clamp":
        return max(ranges[0][0], ranges[1][0]), min(ranges[0][1], ranges[2][1])
    if name == "sum_over_time":
        return _NOT_NEGATIVE if ranges[0][0] >= 0 else _ANY
    if name in ("ceil", "floor", "round"):
        return ranges[0][0] - 1 if ranges[0][0] else 0, ranges[0][1] + 1
    if name.endswith("_over_time") or name in ("vector", "scalar", "sort", "sort_desc", "label_replace", "label_join"):
        return ranges[0]
    return _ANY


def _of_aggregation(node: Aggregation, inner: Range) -> Range:
    if node.operator in _KEEPS:
        return inner
    if node.operator in ("count", "count_values"):
        return 1, inf
    if node.operator == "group":
        return 1, 1
    return _NOT_NEGATIVE if inner[0] >= 0 or node.operator in _SPREADS else _ANY


def _of_binary(node: Binary, of_selector: Callable[[Selector], Range]) -> Range:
    left, right = value_range(node.left, of_selector), value_range(node.right, of_selector)
    operator = node.operator
    if operator == "or":
        return min(left[0], right[0]), max(left[1], right[1])
    if operator in COMPARISONS:
        return (0, 1) if node.returns_bool else left
    if operator in SET_OPERATORS:
        return left
    if operator == "+":
        return left[0] + right[0], left[1] + right[1]
    if operator == "-":
        return left[0] - right[1], left[1] - right[0]
    if operator == "*" or (operator == "/" and right[0] == right[1] and right[0] not in (0, inf)):
        factors = [1 / right[0]] if operator == "/" else list(right)
        products = [_product(a, b) for a in left for b in factors]
        return min(products), max(products)
    if operator in ("/", "%", "^") and left[0] >= 0 and right[0] >= 0:
        return _NOT_NEGATIVE
    return _ANY


def _product(a: float, b: float) -> float:
    return 0 if 0 in (a, b) else a * b
