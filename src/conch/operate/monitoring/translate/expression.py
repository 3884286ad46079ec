"""Rewrite a query for other metric names, units and labels, by its syntax tree.

Each part of a query carries a scale: its values are that many times those of the original. Operations that do not
depend on the unit keep it (`sum`, `rate`), constants that are compared or added are multiplied by it (thresholds), and
where neither is possible (`ln`, a sum of metrics with different units) the part is converted back.
"""

import re
from dataclasses import dataclass, replace
from fractions import Fraction

from conch.operate.monitoring import promql
from conch.operate.monitoring.promql import Binary, Call, LabelMatcher, Negation, Node, Number, Parentheses, Selector
from conch.operate.monitoring.translate.dialects import (
    Counterpart,
    Dialect,
    Untranslatable,
    belongs,
    counterparts,
    label_name,
    model_label,
    reason,
)
from conch.operate.monitoring.translate.variables import MIN_PLACEHOLDER, PLACEHOLDER

_ONE = Fraction(1)
# f(k · x) = k · f(x)
_SCALING_NAMES = (
    "rate irate increase delta idelta deriv avg_over_time min_over_time max_over_time sum_over_time last_over_time "
    "quantile_over_time stddev_over_time mad_over_time abs clamp clamp_min clamp_max predict_linear label_replace "
    "label_join sort sort_desc sort_by_label sort_by_label_desc scalar vector holt_winters "
    "double_exponential_smoothing"
)
# f(k · x) = f(x)
_UNITLESS_NAMES = "count_over_time absent absent_over_time present_over_time changes resets timestamp sgn"
_AGGREGATION_NAMES = "sum avg min max topk bottomk quantile stddev limitk limit_ratio"
_SCALING_FUNCTIONS = frozenset(_SCALING_NAMES.split())
_UNITLESS_FUNCTIONS = frozenset(_UNITLESS_NAMES.split())
_SCALING_AGGREGATIONS = frozenset(_AGGREGATION_NAMES.split())
_LABELLED = frozenset(("topk", "bottomk", "limitk", "limit_ratio"))  # their results keep all labels
# Constants that convert units rather than being a quantity.
_CONVERSIONS = frozenset((100, 1000, 1024, 10**6, 2**20, 10**9, 2**30))


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a query, rewritten.

    `scale` is that of its values, `bound_scale` that of its `le` label. `foreign`: it has series of other
    metrics, whose labels stay. `added` are labels that the original's series do not have.
    """

    node: Node
    scale: Fraction = _ONE
    bound_scale: Fraction = _ONE
    constant: bool = False
    translated: bool = False
    foreign: bool = False
    added: frozenset[tuple[str, str]] = frozenset()


class Rewriter:
    """Rewrites queries from one dialect to another. Raises Untranslatable where there is no counterpart."""

    def __init__(self, source: Dialect, target: Dialect, *, patterns: bool = False, model: str = "") -> None:
        """`patterns`: keep a pattern of all names of the source, if the target's have the same prefix.

        `model` is selected where the source has metrics of language models only, and the target of all models.
        """
        self.mixes = False  # whether a selector without a model has become one of all models
        self._model = model
        self._source: Dialect = source
        self._target: Dialect = target
        self._patterns = patterns

    def rewrite(self, node: Node) -> Part:
        """Rewrite a query."""
        match node:
            case Number():
                return Part(node, constant=True)
            case Selector():
                return self._selector(node)
            case promql.Subquery() | Negation() | Parentheses():
                inner = self.rewrite(node.expr)
                return replace(inner, node=replace(node, expr=inner.node))
            case Call():
                return self._call(node)
            case promql.Aggregation():
                return self._aggregation(node)
            case Binary():
                return self._binary(node)
            case _:
                return Part(node, constant=True)

    def _selector(self, node: Selector) -> Part:
        if node.metric is None:
            return self._nameless(node)
        if PLACEHOLDER in node.metric:
            raise Untranslatable("a variable", "a metric whose name is a variable is not translatable")
        if not belongs(node.metric, self._source):
            return Part(node, foreign=True)
        if node.alternatives:
            raise Untranslatable(node.metric, "alternatives of matchers are not supported")
        new = self._counterpart(node)
        kept = (matcher for matcher in node.matchers if (matcher.label, matcher.value) not in new.required)
        matchers = [self._matcher(matcher, new) for matcher in kept]
        matchers += [LabelMatcher(label, "=", value) for label, value in new.added]
        label = model_label(self._source, self._target)
        if label and not any(matcher.label == label for matcher in matchers):
            if self._model:
                matchers.append(LabelMatcher(label, "=", self._model))
            else:
                self.mixes = True
        changed = replace(node, metric=new.name, matchers=tuple(matchers))
        return Part(changed, new.factor, new.bound_factor, translated=True, added=frozenset(new.added))

    def _nameless(self, node: Selector) -> Part:
        """Return a selector whose names are chosen by matchers."""
        pattern = next((matcher for matcher in node.matchers if matcher.label == "__name__"), None)
        if pattern is None and not node.alternatives:
            return Part(node, foreign=True)
        shared = [
            f"{prefix}.*"
            for prefix in ("DCGM_FI_", "vllm:", "gen_ai_", "nv_")
            if belongs(prefix, self._source) and belongs(prefix, self._target)
        ]
        if self._patterns and pattern is not None and pattern.value in shared:
            matchers = tuple(replace(matcher, label=self._label(matcher.label)) for matcher in node.matchers)
            return Part(replace(node, matchers=matchers), translated=True)
        subject = f"{{__name__{pattern.operator}{pattern.value!r}}}" if pattern else "{… or …}"
        raise Untranslatable(subject, "select the metrics by name: a pattern has no counterpart")

    def _counterpart(self, node: Selector) -> Counterpart:
        assert node.metric is not None
        entries = counterparts(node.metric, self._source, self._target)
        if not entries:
            raise Untranslatable(node.metric, reason(node.metric, self._source, self._target))
        exact = {(matcher.label, matcher.value) for matcher in node.matchers if matcher.operator == "="}
        fitting = [entry for entry in entries if exact.issuperset(entry.required)]
        if not fitting:
            needed = dict.fromkeys(f'{label}="{value}"' for entry in entries for label, value in entry.required)
            raise Untranslatable(node.metric, f"its selector must have {' or '.join(needed)}")
        return fitting[0]

    def _matcher(self, matcher: LabelMatcher, new: Counterpart) -> LabelMatcher:
        if matcher.label == "le" and new.bound_factor != 1 and matcher.value not in ("+Inf", ""):
            if matcher.operator not in ("=", "!="):
                raise Untranslatable("le", "a pattern of bounds of buckets is not convertible to another unit")
            bound = promql.render(Number(float(Fraction(matcher.value) * new.bound_factor)))
            # Some exporters write the bound 1 as 1.0.
            operator: promql.MatchOperator = "=~" if matcher.operator == "=" else "!~"
            return LabelMatcher("le", operator, f"{re.escape(bound)}(\\.0)?")
        return replace(matcher, label=self._label(matcher.label))

    def _label(self, label: str) -> str:
        return label_name(label, self._source, self._target)

    def _labels(self, labels: tuple[str, ...], *parts: Part) -> tuple[str, ...]:
        """Return the new names of the labels of series."""
        if not any(part.translated for part in parts):
            return labels
        renamed = tuple(map(self._label, labels))
        if renamed != labels and any(part.foreign for part in parts):
            old = next(old for old, new in zip(labels, renamed, strict=True) if old != new)
            raise Untranslatable(old, "the label is renamed, but series of other metrics in the query keep it")
        return renamed

    def _call(self, node: Call) -> Part:
        parts = [self.rewrite(argument) for argument in node.arguments]
        series = next((part for part in parts if not part.constant), None)
        if series is None:
            constant = node.function == "vector"
            return Part(replace(node, arguments=tuple(part.node for part in parts)), constant=constant)
        name = node.function
        if name == "histogram_quantile":
            scale = series.bound_scale
        elif name in _SCALING_FUNCTIONS:
            scale = series.scale
        else:
            scale = _ONE
        if name == "histogram_fraction":
            parts = [_times(part, series.bound_scale) if part.constant else part for part in parts]
        elif name.startswith("clamp"):
            parts = [_times(part, scale) if part.constant else part for part in parts]
        elif name in ("label_replace", "label_join", "sort_by_label", "sort_by_label_desc"):
            parts = self._with_label_arguments(name, parts, series)
        elif name not in _SCALING_FUNCTIONS | _UNITLESS_FUNCTIONS and not name.startswith("histogram_"):
            parts = [_materialized(part) for part in parts]
        arguments = tuple(part.node for part in parts)
        return replace(series, node=replace(node, arguments=arguments), scale=scale)

    def _with_label_arguments(self, name: str, parts: list[Part], series: Part) -> list[Part]:
        positions = {"label_replace": (1, 3), "label_join": (1, *range(3, len(parts)))}.get(name, range(1, len(parts)))
        changed = list(parts)
        for index in positions:
            text = parts[index].node
            if isinstance(text, promql.Text):
                [label] = self._labels((text.value,), series)
                changed[index] = replace(parts[index], node=promql.Text(label))
        return changed

    def _aggregation(self, node: promql.Aggregation) -> Part:
        part = self.rewrite(node.expr)
        labels = self._labels(node.labels, part)
        added, bound = part.added, part.bound_scale
        if node.operator not in _LABELLED:
            if node.grouping == "without":
                labels += tuple(sorted({label for label, _ in added} - set(labels)))
            kept = set(labels) if node.grouping == "by" else set()
            added = frozenset(pair for pair in added if pair[0] in kept)
            if "le" not in kept and not (node.grouping == "without" and "le" not in labels):
                bound = _ONE
        if node.operator in _SCALING_AGGREGATIONS:
            scale = part.scale
        elif node.operator == "stdvar":
            scale = part.scale**2
        else:
            scale = _ONE
            if node.operator == "count_values":
                part = _materialized(part)
        parameter = None if node.parameter is None else self.rewrite(node.parameter).node
        changed = replace(node, expr=part.node, labels=labels, parameter=parameter)
        return replace(part, node=changed, scale=scale, bound_scale=bound, added=added)

    def _binary(self, node: Binary) -> Part:
        left, right = self.rewrite(node.left), self.rewrite(node.right)
        if left.constant and right.constant:
            return Part(replace(node, left=left.node, right=right.node), constant=True)
        absorbed = _absorbed(node, left, right)
        if absorbed is not None:
            return absorbed
        left, right, scale = _scaled_operands(node.operator, left, right)
        if node.returns_bool:
            scale = _ONE
        labels = self._labels(node.labels, left, right)
        group_labels = self._labels(node.group_labels, left, right)
        changed = replace(node, left=left.node, right=right.node, labels=labels, group_labels=group_labels)
        differing = {label for label, _ in left.added ^ right.added}
        if differing and not left.constant and not right.constant and node.matching != "on":
            ignored = labels + tuple(sorted(differing - set(labels)))
            changed = replace(changed, matching="ignoring", labels=ignored)
        main = right if left.constant else left
        other = left if left.constant else right
        return Part(
            changed,
            scale,
            main.bound_scale if main.bound_scale != 1 else other.bound_scale,
            translated=left.translated or right.translated,
            foreign=left.foreign or right.foreign,
            added=main.added if other.constant else left.added & right.added,
        )


def original_unit(part: Part) -> Node:
    """Return the rewritten query with values in the units of the original."""
    return _materialized(part).node


def _materialized(part: Part) -> Part:
    return replace(part, node=scaled(part.node, 1 / part.scale), scale=_ONE)


def scaled(node: Node, factor: Fraction) -> Node:
    """Return a query times a factor, with at most one constant at its end."""
    if isinstance(node, Binary) and node.operator in ("*", "/") and (value := _value(node.right)):
        return scaled(node.left, factor * (value if node.operator == "*" else 1 / value))
    if factor == 1:
        return node
    if factor.numerator == 1:
        return Binary("/", node, Number(float(factor.denominator)))
    return Binary("*", node, Number(float(factor)))


def _value(node: Node) -> Fraction | None:
    """Return the value of a constant, or None if it is unknown, zero or infinite."""
    if isinstance(node, Number) and 0 < abs(node.value) < MIN_PLACEHOLDER:
        return Fraction(repr(node.value))
    return None


def _times(part: Part, factor: Fraction) -> Part:
    """Return a constant part times a factor."""
    return replace(part, node=_constant_times(part.node, factor))


def _constant_times(node: Node, factor: Fraction) -> Node:
    if factor == 1 or isinstance(node, promql.Text):
        return node
    match node:
        case Number():
            if abs(node.value) < MIN_PLACEHOLDER:
                return Number(float(Fraction(repr(node.value)) * factor))
            return node if node.value in (float("inf"), float("-inf")) else scaled(node, factor)
        case Negation() | Parentheses():
            return replace(node, expr=_constant_times(node.expr, factor))
        case Call(function="vector"):
            return replace(node, arguments=(_constant_times(node.arguments[0], factor),))
        case _:
            return scaled(node, factor)


def _absorbed(node: Binary, left: Part, right: Part) -> Part | None:
    """Return a product or quotient with a constant that converts units, in the original unit, else None.

    So `DCGM_FI_DEV_SM_CLOCK * 1000000` is `DCGM_FI_DEV_SM_CLOCK_HERTZ`.
    """
    part, constant = (right, left) if left.constant else (left, right)
    value = _value(promql.strip(constant.node))
    if value is None or part.constant or abs(value) not in _CONVERSIONS:
        return None
    if part.scale == 1 and not (part.translated and isinstance(part.node, Binary)):
        return None
    if node.operator == "*":
        return replace(part, node=scaled(part.node, value / part.scale), scale=_ONE)
    if node.operator == "/" and constant is right:
        return replace(part, node=scaled(part.node, 1 / value / part.scale), scale=_ONE)
    return None


def _scaled_operands(operator: str, left: Part, right: Part) -> tuple[Part, Part, Fraction]:
    """Return the operands of an operation in units that fit, and the scale of its result."""
    if operator == "*":
        return left, right, left.scale * right.scale
    if operator == "/":
        return left, right, left.scale / right.scale
    if operator in ("and", "unless"):
        return left, right, left.scale
    if operator == "^":
        exponent = _value(promql.strip(right.node))
        if exponent is not None and exponent.denominator == 1:
            return left, right, left.scale ** int(exponent)
    elif operator != "atan2":
        if left.scale == right.scale:
            return left, right, left.scale
        if right.constant:
            return left, _times(right, left.scale), left.scale
        if left.constant:
            return _times(left, right.scale), right, right.scale
    return _materialized(left), _materialized(right), _ONE
