"""Which labels the results of a query have."""

from collections.abc import Callable
from dataclasses import dataclass

from conch.operate.monitoring.promql import (
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
            return _of_call(node, of_selector)
        case Aggregation():
            return _of_aggregation(node, of_selector)
        case Binary():
            return _of_binary(node, of_selector)
        case _:
            return LabelSet()


def _of_call(node: Call, of_selector: Callable[[Selector], LabelSet]) -> LabelSet:
    vector = next((each for each in node.arguments if not is_scalar(each)), None)
    if node.function in ("absent", "absent_over_time"):
        matchers = vector.matchers if isinstance(vector, Selector) else ()
        return LabelSet(frozenset(each.label for each in matchers if each.operator == "="))
    if vector is None:
        return LabelSet()
    labels = label_set(vector, of_selector)
    if node.function in ("label_replace", "label_join") and isinstance(node.arguments[1], Text):
        return labels.with_label(node.arguments[1].value)
    if node.function == "histogram_quantile":
        return labels.without(frozenset({"le"}))
    return labels


def _of_aggregation(node: Aggregation, of_selector: Callable[[Selector], LabelSet]) -> LabelSet:
    labels = label_set(node.expr, of_selector)
    if node.operator in _KEEPS_LABELS:
        return labels
    chosen = frozenset(node.labels)
    if node.grouping == "without":
        result = labels.without(chosen)
    else:
        may = frozenset(each for each in chosen if not labels.lacks(each))
        # Of series about which nothing is known, results are taken to have the labels that the author names.
        present = labels.present & chosen if labels.closed else chosen
        result = LabelSet(present, may, True)
    if node.operator == "count_values" and isinstance(node.parameter, Text):
        return result.with_label(node.parameter.value)
    return result


def _of_binary(node: Binary, of_selector: Callable[[Selector], LabelSet]) -> LabelSet:
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
        added = frozenset(each for each in node.group_labels if not right.lacks(each))
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
    vector = next((each for each in node.arguments if not is_scalar(each)), None)
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
