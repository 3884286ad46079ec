"""What the results of a query are: scalars or vectors, which labels they have, and between which values they lie."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf, isnan
from typing import TypeAlias

from conch.operate.monitoring.promql import (
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
    Text,
    render,
    strip,
)

_SCALARS = ("scalar", "time", "pi")
_KEEPS_LABELS = ("topk", "bottomk", "limitk", "limit_ratio")


@dataclass(frozen=True, slots=True)
class LabelSet:
    """Labels that all results have, and those that some may have; `closed` if no result has others."""

    present: frozenset[str] = frozenset()
    possible: frozenset[str] = frozenset()
    closed: bool = True

    def lacks(self, label: str) -> bool:
        """Return whether no result has the label."""
        return self.closed and label not in self.present and label not in self.possible

    def with_label(self, label: str) -> "LabelSet":
        """Return the set with a label that all results have."""
        return LabelSet(self.present | {label}, self.possible, self.closed)

    def without(self, labels: frozenset[str]) -> "LabelSet":
        """Return the set without some labels."""
        return LabelSet(self.present - labels, self.possible - labels, self.closed)


def is_scalar(node: Node) -> bool:
    """Return whether an expression is a number rather than a vector."""
    match node:
        case Number() | Text():
            return True
        case Parentheses() | Negation():
            return is_scalar(node.expr)
        case Call():
            return node.function in _SCALARS
        case Binary():
            return is_scalar(node.left) and is_scalar(node.right)
        case _:
            return False


def label_set(node: Node, of_selector: Callable[[Selector], LabelSet]) -> LabelSet:
    """Return the labels of the results of an expression; `of_selector` returns those of a metric."""
    match node:
        case Selector():
            labels = of_selector(node)
            for matcher in node.matchers:
                if not matcher.matches(""):
                    labels = labels.with_label(matcher.label)
            return labels
        case Parentheses() | Negation() | Subquery():
            return label_set(node.expr, of_selector)
        case Call():
            return _labels_of_call(node, of_selector)
        case Aggregation():
            return _labels_of_aggregation(node, of_selector)
        case Binary():
            return _labels_of_binary(node, of_selector)
        case _:
            return LabelSet()


def _labels_of_call(node: Call, of_selector: Callable[[Selector], LabelSet]) -> LabelSet:
    vector = next((argument for argument in node.arguments if not is_scalar(argument)), None)
    if node.function in ("absent", "absent_over_time"):
        matchers = vector.matchers if isinstance(vector, Selector) else ()
        return LabelSet(frozenset(matcher.label for matcher in matchers if matcher.operator == "="))
    if vector is None:
        return LabelSet()
    labels = label_set(vector, of_selector)
    if node.function in ("label_replace", "label_join") and isinstance(node.arguments[1], Text):
        return labels.with_label(node.arguments[1].value)
    if node.function == "histogram_quantile":
        return labels.without(frozenset({"le"}))
    return labels


def _labels_of_aggregation(node: Aggregation, of_selector: Callable[[Selector], LabelSet]) -> LabelSet:
    labels = label_set(node.expr, of_selector)
    if node.operator in _KEEPS_LABELS:
        return labels
    chosen = frozenset(node.labels)
    if node.grouping == "without":
        result = labels.without(chosen)
    else:
        may = frozenset(label for label in chosen if not labels.lacks(label))
        # Of series about which nothing is known, results are taken to have the labels that the author names.
        present = labels.present & chosen if labels.closed else chosen
        result = LabelSet(present, may, True)
    if node.operator == "count_values" and isinstance(node.parameter, Text):
        return result.with_label(node.parameter.value)
    return result


def _labels_of_binary(node: Binary, of_selector: Callable[[Selector], LabelSet]) -> LabelSet:
    if is_scalar(node.left) or is_scalar(node.right):
        return label_set(node.right if is_scalar(node.left) else node.left, of_selector)
    left, right = label_set(node.left, of_selector), label_set(node.right, of_selector)
    if node.operator == "or":
        every = left.present & right.present
        return LabelSet(
            every, left.present | right.present | left.possible | right.possible, left.closed and right.closed
        )
    if node.operator in SET_OPERATORS:
        return left
    if node.group == "group_right":
        left, right = right, left
    if node.group:
        added = frozenset(label for label in node.group_labels if not right.lacks(label))
        return LabelSet(left.present, left.possible | added, left.closed)
    if node.matching == "on":
        chosen = frozenset(node.labels)
        return LabelSet(left.present & chosen, chosen, True)
    return left.without(frozenset(node.labels))


def fixed_labels(node: Node) -> dict[str, str]:
    """Return the labels that all results have with one value, as conditions say."""
    match node:
        case Selector():
            return {
                matcher.label: matcher.value for matcher in node.matchers if matcher.operator == "=" and matcher.value
            }
        case Parentheses() | Negation() | Subquery():
            return fixed_labels(node.expr)
        case Call():
            return _fixed_by_call(node)
        case Aggregation():
            fixed = fixed_labels(node.expr)
            if node.operator in _KEEPS_LABELS:
                return fixed
            if node.grouping == "without":
                return {label: value for label, value in fixed.items() if label not in node.labels}
            return {label: value for label, value in fixed.items() if label in node.labels}
        case Binary():
            return _fixed_by_binary(node)
        case _:
            return {}


def _fixed_by_call(node: Call) -> dict[str, str]:
    vector = next((argument for argument in node.arguments if not is_scalar(argument)), None)
    fixed = {} if vector is None else fixed_labels(vector)
    if node.function in ("label_replace", "label_join") and isinstance(node.arguments[1], Text):
        fixed.pop(node.arguments[1].value, None)
    return fixed


def _fixed_by_binary(node: Binary) -> dict[str, str]:
    if is_scalar(node.left) or is_scalar(node.right):
        return fixed_labels(node.right if is_scalar(node.left) else node.left)
    left, right = fixed_labels(node.left), fixed_labels(node.right)
    if node.operator == "or":
        return dict(left.items() & right.items())
    if node.operator in SET_OPERATORS:
        return left
    if node.group == "group_right":
        left, right = right, left
    if node.group:
        return {label: value for label, value in left.items() if label not in node.group_labels}
    kept = set(node.labels) if node.matching == "on" else left.keys() - set(node.labels)
    return {label: value for label, value in left.items() if label in kept}


Range: TypeAlias = tuple[float, float]

_ANY: Range = (-inf, inf)
_NOT_NEGATIVE: Range = (0, inf)
_RATES = ("rate", "irate", "increase", "resets", "changes", "count_over_time", "time", "timestamp", "abs", "sqrt")
_SPREADS = ("stddev", "stdvar", "stddev_over_time", "stdvar_over_time")
_UNBOUNDED = ("delta", "idelta", "deriv", "predict_linear", "ln", "log2", "log10", "exp", "holt_winters")
_OF_TIME: dict[str, Range] = {
    "minute": (0, 59),
    "hour": (0, 23),
    "day_of_week": (0, 6),
    "day_of_month": (1, 31),
    "day_of_year": (1, 366),
    "days_in_month": (28, 31),
    "month": (1, 12),
    "sgn": (-1, 1),
    "sin": (-1, 1),
    "cos": (-1, 1),
}
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
# What is used or free of something, and all of it: names that are equal but for these words.
_PART = re.compile(r"used|free|avail(?:able)?", re.IGNORECASE)
_WHOLE = re.compile(r"total|size|capacity", re.IGNORECASE)
_ADDS_UP = ("rate", "irate", "increase", "count_over_time", "sum_over_time")
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
            return _range_of_call(node, of_selector)
        case Aggregation():
            return _range_of_aggregation(node, value_range(node.expr, of_selector))
        case Binary():
            return _range_of_binary(node, of_selector)
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


def _range_of_call(node: Call, of_selector: Callable[[Selector], Range]) -> Range:
    name = node.function
    if name in _OF_TIME:
        return _OF_TIME[name]
    if name in _RATES or name in _SPREADS or not node.arguments:
        return _NOT_NEGATIVE
    if name in ("absent", "absent_over_time", "present_over_time"):
        return 1, 1
    if name in _UNBOUNDED:
        return _ANY
    ranges = [value_range(argument, of_selector) for argument in node.arguments]
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


def _range_of_aggregation(node: Aggregation, inner: Range) -> Range:
    if node.operator in _KEEPS:
        return inner
    if node.operator in ("count", "count_values"):
        return 1, inf
    if node.operator == "group":
        return 1, 1
    return _NOT_NEGATIVE if inner[0] >= 0 or node.operator in _SPREADS else _ANY


def _range_of_binary(node: Binary, of_selector: Callable[[Selector], Range]) -> Range:
    left, right = value_range(node.left, of_selector), value_range(node.right, of_selector)
    operator = node.operator
    if operator == "or":
        return min(left[0], right[0]), max(left[1], right[1])
    if operator in COMPARISONS:
        if node.returns_bool:
            return 0, 1
        if is_scalar(node.left):
            return _narrowed(_MIRRORED[operator], right, left)
        return _narrowed(operator, left, right)
    if operator in SET_OPERATORS:
        return left
    product = strip(node.left)
    if operator == "/" and isinstance(product, Binary) and product.operator == "*":
        # 100 * a / b is (100 * a) / b.
        for number, other in ((product.left, product.right), (product.right, product.left)):
            if is_scalar(number) and not is_scalar(other):
                ratio = _range_of_binary(replace(node, left=other), of_selector)
                products = [_product(a, b) for a in ratio for b in value_range(number, of_selector)]
                return min(products), max(products)
    if operator in ("-", "/") and _same(node.left, node.right):
        return (0, 0) if operator == "-" else (1, 1)
    if operator == "/" and left[0] >= 0 and right[0] >= 0 and is_part(node.left, node.right):
        return 0, 1
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


def is_part(part: Node, whole: Node) -> bool:
    """Return whether the values of an expression are among those that another one adds up or contains."""
    part, whole = strip(part), strip(whole)
    if isinstance(whole, Binary) and whole.operator == "+" and not whole.matching:
        return _same(part, whole.left) or _same(part, whole.right)
    if isinstance(part, Binary) and not part.matching:
        chosen = part.operator in ("and", "unless") or (part.operator in COMPARISONS and not part.returns_bool)
        return chosen and (_same(part.left, whole) or is_part(part.left, whole))
    if isinstance(part, Aggregation) and isinstance(whole, Aggregation):
        alike = (part.operator, part.grouping, part.labels) == (whole.operator, whole.grouping, whole.labels)
        if not alike or part.operator not in ("sum", "count"):
            return False
        return is_part(part.expr, whole.expr) or (part.operator == "count" and _same(part.expr, whole.expr))
    if isinstance(part, Call) and isinstance(whole, Call):
        alike = part.function == whole.function in _ADDS_UP and len(part.arguments) == len(whole.arguments) == 1
        return alike and is_part(part.arguments[0], whole.arguments[0])
    return isinstance(part, Selector) and isinstance(whole, Selector) and _is_part(part, whole)


def _is_part(part: Selector, whole: Selector) -> bool:
    if (part.range_s, part.offset_s, part.at) != (whole.range_s, whole.offset_s, whole.at):
        return False
    if part.alternatives or whole.alternatives or part.metric is None or whole.metric is None:
        return False
    matchers = set(part.matchers)
    if part.metric.endswith("_bucket") and whole.metric == part.metric.removesuffix("_bucket") + "_count":
        bound = {matcher for matcher in matchers if matcher.label == "le" and matcher.operator == "="}
        return bool(bound) and set(whole.matchers) <= matchers - bound
    if not set(whole.matchers) <= matchers:
        return False
    if part.metric == whole.metric:
        return True
    shorter = _PART.sub("", part.metric), _WHOLE.sub("", whole.metric)
    return shorter[0] == shorter[1] and part.metric != shorter[0] and whole.metric != shorter[1]


def _same(left: Node, right: Node) -> bool:
    return not is_scalar(left) and render(strip(left)) == render(strip(right))


def _narrowed(operator: str, values: Range, limit: Range) -> Range:
    """Return the values that a comparison keeps."""
    low, high = values
    if operator in (">", ">=", "=="):
        low = max(low, limit[0])
    if operator in ("<", "<=", "=="):
        high = min(high, limit[1])
    return (low, high) if low <= high else values


def _product(a: float, b: float) -> float:
    return 0 if 0 in (a, b) else a * b
