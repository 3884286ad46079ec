"""Find alerts that can never fire, or fire for ever, by what is known of their metrics: kind, unit, labels."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan

from conch.operate.monitoring.promql import (
    COMPARISONS,
    Aggregation,
    Binary,
    Call,
    LabelMatcher,
    Node,
    Number,
    PromqlError,
    Selector,
    Text,
    duration,
    metric_uses,
    parse,
    position,
    render,
    strip,
    walk,
)
from conch.operate.monitoring.rules.known_metrics import SCRAPED_LABELS, KnownMetric, MetricTable
from conch.operate.monitoring.rules.misfires import misfires
from conch.operate.monitoring.rules.result_types import (
    LabelSet,
    Range,
    fixed_labels,
    is_scalar,
    label_set,
    never,
    value_range,
)
from conch.operate.monitoring.rules.user_rules import RuleProblem, UserRule, Verdict

_OF_COUNTERS = ("rate", "irate", "increase")
_EVENTS = (*_OF_COUNTERS, "changes", "resets", "delta", "idelta")
_AS_IS = ("sum", "avg", "min", "max", "topk", "bottomk", "quantile", "sort", "sort_desc", "label_replace", "label_join")
_INFO = re.compile(r"(_info|_labels|_annotations)$")
_NUMERIC = re.compile(r"(^|_)(max|min|limit|qps|rps|tps|rate|threshold|count|size|port|timeout|replicas)(_|$)")
_TEMPLATE_LABEL = re.compile(r"\$labels\.([a-zA-Z_]\w*)")
# Gauges of Triton whose values only grow.
_CUMULATIVE_GAUGES = ("nv_cache_", "nv_energy_")


@dataclass(frozen=True, slots=True)
class AnalysedRule:
    """A rule, its tree unless the rule is invalid, and its problems, the worst first.

    `unchecked` are metrics about which nothing is known.
    """

    rule: UserRule
    tree: Node | None
    problems: tuple[RuleProblem, ...]
    unchecked: tuple[str, ...] = ()


def analyse_rules(rules: Sequence[UserRule], table: MetricTable, scrape_interval_s: float = 15) -> list[AnalysedRule]:
    """Analyse the rules of a file, which may use each other's records."""
    trees: dict[str, Node] = {}
    for rule in rules:
        if not rule.is_alert:
            try:
                trees[rule.name] = parse(rule.expr)
            except PromqlError:
                continue
    analysis = _Analysis(table, trees, {rule.name: rule.labels for rule in rules}, scrape_interval_s)
    return [analysis.analyse(rule) for rule in rules]


def expression_problems(tree: Node, table: MetricTable, recorded: Mapping[str, Node]) -> list[RuleProblem]:
    """Return what is wrong with a query that is not a rule, such as one of a dashboard."""
    return _Analysis(table, recorded, {}, 1).problems_of(tree)


class _Analysis:
    def __init__(
        self,
        table: MetricTable,
        recorded: Mapping[str, Node],
        rule_labels: Mapping[str, tuple[str, ...]],
        scrape_interval_s: float,
    ) -> None:
        self._table = table
        self._recorded = recorded
        self._rule_labels = rule_labels
        self._scrape_interval_s = scrape_interval_s
        self._active: list[str] = []  # records that are being resolved; a record may use itself

    def analyse(self, rule: UserRule) -> AnalysedRule:
        """Analyse one rule."""
        if rule.faults:
            texts = (f"line {fault.line}: {fault.message}" for fault in rule.faults)
            return AnalysedRule(rule, None, tuple(RuleProblem("never", "invalid-rule", text) for text in texts))
        try:
            tree = parse(rule.expr)
        except PromqlError as error:
            reason = str(error).removeprefix("invalid promql query")  # which says nothing more
            message = f"invalid PromQL {position(rule.expr, error.offset)}{reason and f': {reason}'}"
            return AnalysedRule(rule, None, (RuleProblem("never", "syntax", message, error.offset),))
        problems = self.problems_of(tree)
        if rule.is_alert:
            problems += [*_condition(tree), *self._for(rule, tree), *self._templates(rule, tree)]
            problems += misfires(rule, tree, self._known, self._range)
        order = {"never": 0, "wrong": 1, "doubtful": 2}
        problems = sorted(dict.fromkeys(problems), key=lambda problem: order[problem.verdict])
        names = dict.fromkeys(use.selector.metric or "" for use in metric_uses(tree))
        unchecked = [name for name in names if name and name not in self._recorded and not self._is_checked(name)]
        return AnalysedRule(rule, tree, tuple(problems), tuple(unchecked))

    def _is_checked(self, name: str) -> bool:
        table = self._table
        known = table.find(name) is not None or table.is_absent_everywhere(name)
        return known or table.is_own(name) or table.is_shared(name)

    def problems_of(self, node: Node) -> list[RuleProblem]:
        """Return the problems of an expression and of its operands."""
        match node:
            case Selector():
                return list(self._selector(node))
            case Binary():
                return self._binary(node)
            case Call():
                below = [problem for argument in node.arguments for problem in self.problems_of(argument)]
                if node.function in ("absent", "absent_over_time"):
                    return [*(_always(problem) for problem in below), *self._call(node)]
                return [*below, *self._call(node)]
            case Aggregation():
                return [*self.problems_of(node.expr), *self._aggregation(node)]
            case Number() | Text():
                return []
            case _:
                return self.problems_of(node.expr)

    # Selectors

    def _selector(self, node: Selector) -> Iterator[RuleProblem]:
        yield from _contradictions(node)
        name = node.metric
        if name is None:
            return
        if name in self._recorded:
            yield from self._record(node, name)
            return
        metric = self._table.find(name)
        yield from _unknown_values(node, self._table.label_values(name))
        if metric is None:
            hint = self._table.suggestion(name)
            if self._table.is_shared(name) and not self._table.is_own(name):
                yield RuleProblem("doubtful", "unknown-metric", f"Conch has no metric '{name}'{hint}", node.place)
            elif self._is_checked(name):
                yield RuleProblem("never", "unknown-metric", f"no metric is named '{name}'{hint}", node.place)
            return
        if metric.definition.kind == "histogram" and not metric.part:
            message = f"the histogram '{name}' has no series with just that name; use {name}_bucket, _sum or _count"
            yield RuleProblem("never", "histogram-name", message, node.place)
            return
        labels = self._labels(node)
        for matcher in node.matchers:
            if matcher.label != "__name__" and not matcher.matches(""):
                bare = replace(node, matchers=())
                if self._labels(bare).lacks(matcher.label):
                    known = ", ".join(sorted(labels.present - {matcher.label}))
                    message = f"'{name}' has no label '{matcher.label}'; it has {known}"
                    added = self._table.may_be_added(matcher.label, metric)
                    yield RuleProblem("doubtful" if added else "never", "unknown-label", message, node.place)

    def _record(self, node: Selector, name: str) -> Iterator[RuleProblem]:
        if name in self._active:
            return
        self._active.append(name)
        for problem in self.problems_of(self._recorded[name]):
            yield replace(problem, message=f"in the record '{name}': {problem.message}", offset=node.place)
        self._active.pop()

    def _labels(self, node: Node) -> LabelSet:
        return label_set(node, self._of_selector)

    def _of_selector(self, node: Selector) -> LabelSet:
        name = node.metric or ""
        if name in self._recorded and name not in self._active:
            self._active.append(name)
            labels = label_set(self._recorded[name], self._of_selector)
            self._active.pop()
            added = frozenset(self._rule_labels.get(name, ()))
            return LabelSet(labels.present | added, labels.possible, labels.closed)
        metric = self._table.find(name)
        if metric is None:
            # Scraped series have the labels of their target; names with a colon are those of records elsewhere.
            return LabelSet(frozenset() if ":" in name or not name else SCRAPED_LABELS, closed=False)
        return LabelSet(metric.labels, frozenset(metric.definition.optional_labels) | self._table.target_labels, True)

    def _range(self, node: Node) -> Range:
        return value_range(node, self._range_of_selector)

    def _range_of_selector(self, node: Selector) -> Range:
        name = node.metric or ""
        if name in self._recorded and name not in self._active:
            self._active.append(name)
            values = self._range(self._recorded[name])
            self._active.pop()
            return values
        return self._table.value_range(name)

    def _known(self, node: Selector) -> KnownMetric | None:
        return None if node.metric is None or node.metric in self._recorded else self._table.find(node.metric)

    # Functions and aggregations

    def _call(self, node: Call) -> Iterator[RuleProblem]:
        for argument in node.arguments:
            inner = strip(argument)
            if isinstance(inner, Selector) and inner.range_s is not None:
                yield from self._range_function(node, inner)
        if node.function == "histogram_quantile" and len(node.arguments) == 2:
            if self._labels(node.arguments[1]).lacks("le"):
                message = "histogram_quantile needs the label 'le' of the buckets; keep it: sum by (le, …)"
                yield RuleProblem("never", "no-buckets", message, node.place)
            yield from _quantile(node.arguments[0], node.place)
            for use in metric_uses(node.arguments[1]):
                if (use.selector.metric or "").endswith(("_sum", "_count")):
                    message = f"'{use.selector.metric}' has no buckets, of which histogram_quantile is"
                    yield RuleProblem("never", "no-buckets", message, use.selector.place)
        if node.function in ("absent", "absent_over_time") and _is_constant(node.arguments[0]):
            yield RuleProblem("never", "always-present", f"{node.function} of a constant is never true", node.place)
        if node.function == "label_replace" and len(node.arguments) == 5:
            yield from self._label_replace(node)

    def _range_function(self, node: Call, selector: Selector) -> Iterator[RuleProblem]:
        metric, name, range_s = self._known(selector), selector.metric, selector.range_s or 0
        if node.function in _OF_COUNTERS and range_s < 2 * self._scrape_interval_s:
            message = (
                f"{node.function} needs two samples, and {duration(range_s)} rarely has them if targets are scraped"
                f" every {self._scrape_interval_s:g} s; use at least {duration(4 * self._scrape_interval_s)}"
            )
            verdict: Verdict = "never" if range_s < self._scrape_interval_s else "doubtful"
            yield RuleProblem(verdict, "short-range", message, node.place)
        is_gauge = name in self._recorded or (metric is not None and not metric.is_counter)
        if node.function in _OF_COUNTERS and is_gauge and not str(name).startswith(_CUMULATIVE_GAUGES):
            message = (
                f"{node.function} of the gauge '{name}': each fall counts as a restart; use delta or avg_over_time"
            )
            yield RuleProblem("wrong", "rate-of-gauge", message, node.place)
        if node.function in ("delta", "idelta", "deriv") and metric is not None and metric.is_counter:
            message = f"{node.function} of the counter '{name}' is negative after a restart; use increase or rate"
            yield RuleProblem("doubtful", "delta-of-counter", message, node.place)

    def _label_replace(self, node: Call) -> Iterator[RuleProblem]:
        source, pattern = node.arguments[3], node.arguments[4]
        if not isinstance(source, Text) or not isinstance(pattern, Text):
            return
        try:
            matches_empty = re.fullmatch(pattern.value, "") is not None
        except re.error as error:
            yield RuleProblem("never", "label-replace", f"invalid regular expression: {error}", node.place)
            return
        if not matches_empty and self._labels(node.arguments[0]).lacks(source.value):
            message = f"label_replace has no effect: the series have no label '{source.value}'"
            yield RuleProblem("wrong", "label-replace", message, node.place)

    def _aggregation(self, node: Aggregation) -> Iterator[RuleProblem]:
        if node.operator == "quantile" and node.parameter is not None:
            yield from _quantile(node.parameter, node.place)
        if node.grouping == "by":
            labels = self._labels(node.expr)
            for label in node.labels:
                if labels.lacks(label):
                    message = f"{node.operator} by ({label}): the series have no label '{label}'"
                    yield RuleProblem("doubtful", "unknown-label", message, node.place)

    # Operations of two vectors, and comparisons

    def _binary(self, node: Binary) -> list[RuleProblem]:
        left, right = self.problems_of(node.left), self.problems_of(node.right)
        if node.operator == "or" and not (_is_never(left) and _is_never(right)):
            return [_partly(problem) for problem in (*left, *right)]
        if node.operator == "unless":
            return [*left, *(_partly(problem) for problem in right), *_without_itself(node)]
        problems = [*left, *right]
        if node.operator in COMPARISONS:
            problems += self._comparison(node)
        if node.operator != "or" and not is_scalar(node.left) and not is_scalar(node.right):
            problems += self._matching(node)
        return problems

    def _comparison(self, node: Binary) -> Iterator[RuleProblem]:
        left, right = self._range(node.left), self._range(node.right)
        if never(node.operator, left, right) and not node.returns_bool:
            operand, other = (node.left, right) if is_scalar(node.left) else (node.right, left)
            number = strip(operand)
            limit = f"{number.value:g}" if isinstance(number, Number) else "that"
            values = f"between {other[0]:g} and {other[1]:g}" if other[1] < float("inf") else f"{other[0]:g} or more"
            message = f"the comparison {node.operator} {limit} is never true: the values are {values}"
            yield RuleProblem("never", "impossible-threshold", message, _place(node))
        elif not node.returns_bool and (reason := _never_true(node)):
            yield RuleProblem("never", "impossible-threshold", reason, _place(node))
        for side, other_side in ((node.left, node.right), (node.right, node.left)):
            if isinstance(strip(other_side), Number) and (selector := _as_is(side)) is not None:
                metric = self._known(selector)
                if metric is not None and metric.is_counter:
                    message = (
                        f"'{selector.metric}' is a counter, which only grows until a restart: the comparison stays true"
                        " once it is; use rate or increase"
                    )
                    yield RuleProblem("wrong", "raw-counter", message, selector.place)
            elif (selector := _as_is(side)) is not None and _INFO.search(selector.metric or ""):
                message = f"'{selector.metric}' has the value 1: what matters are its labels, which cannot be compared"
                yield RuleProblem("wrong", "info-metric", message, selector.place)

    def _matching(self, node: Binary) -> Iterator[RuleProblem]:
        left, right = self._labels(node.left), self._labels(node.right)
        if node.matching == "on":
            matched = frozenset(node.labels)
        else:
            matched = (left.present | right.present) - frozenset(node.labels)
        yield from self._disjoint(node)
        if node.matching == "on":
            # What is matched by a label is taken to have it, unless it cannot.
            left, right = (
                LabelSet(side.present | (frozenset() if side.closed else matched), side.possible, side.closed)
                for side in (left, right)
            )
        for label in sorted(matched):
            sides = [("left", "right", left, right), ("right", "left", right, left)]
            for name, other, has, lacks in sides:
                if label in has.present and lacks.lacks(label):
                    message = (
                        f"the {name} side of '{node.operator}' has the label '{label}' and the {other} side does not:"
                        f" no series match; aggregate both by the same labels, or use on or ignoring"
                    )
                    yield RuleProblem("never", "label-mismatch", message, _place(node))
        if node.matching == "on":
            for side in (node.left, node.right):
                yield from _replaced_by_numbers(side, frozenset(node.labels))

    def _disjoint(self, node: Binary) -> Iterator[RuleProblem]:
        """Find labels that both sides fix to different values, and conditions that exclude each other."""
        left, right = fixed_labels(node.left), fixed_labels(node.right)
        for label in sorted(left.keys() & right.keys()):
            matched = (label in node.labels) is (node.matching == "on")
            if matched and left[label] != right[label]:
                message = (
                    f"the left side of '{node.operator}' has {label}=\"{left[label]}\" and the right side"
                    f' {label}="{right[label]}": no series match; use ignoring ({label}), or on with other labels'
                )
                yield RuleProblem("never", "label-mismatch", message, _place(node))
        if node.operator == "and" and not node.matching:
            (base, values), (other, others) = _kept(node.left, self._range), _kept(node.right, self._range)
            if render(base) == render(other) and (values[1] < others[0] or others[1] < values[0]):
                message = f"no value of '{render(base)}' fulfils both conditions"
                yield RuleProblem("never", "contradiction", message, _place(node))

    # Alerts

    def _for(self, rule: UserRule, tree: Node) -> Iterator[RuleProblem]:
        events = [
            call
            for condition in _conditions(tree)
            if condition.operator in (">", "!=") and strip(condition.right) == Number(0)
            for call, _ in walk(condition.left)
            if isinstance(call, Call) and call.function in _EVENTS
        ]
        for event in events:
            range_s = max((x.range_s or 0 for x in map(strip, event.arguments) if isinstance(x, Selector)), default=0)
            if 0 < range_s <= rule.for_s:
                message = (
                    f"an event is in the range for {duration(range_s)}, which is not longer than for:"
                    f" {duration(rule.for_s)}; a single event never fires the alert"
                )
                yield RuleProblem("doubtful", "for-too-long", message, event.place)

    def _templates(self, rule: UserRule, tree: Node) -> Iterator[RuleProblem]:
        labels = self._labels(tree)
        used = {name for text in rule.texts for name in _TEMPLATE_LABEL.findall(text)}
        for name in sorted(used - set(rule.labels)):
            if labels.lacks(name):
                message = f"a template uses $labels.{name}, which the result of the expression does not have"
                yield RuleProblem("doubtful", "template-label", message)


def _conditions(node: Node) -> Iterator[Binary]:
    """Yield the comparisons that decide whether an alert fires."""
    node = strip(node)
    if isinstance(node, Binary) and node.operator in ("and", "or"):
        yield from _conditions(node.left)
        yield from _conditions(node.right)
    elif isinstance(node, Binary) and node.operator in COMPARISONS:
        yield node


def _condition(tree: Node) -> Iterator[RuleProblem]:
    top = strip(tree)
    if isinstance(top, Binary) and top.operator in COMPARISONS and top.returns_bool:
        message = "bool turns the condition into the values 0 and 1, and an alert fires for both; remove it"
        yield RuleProblem("wrong", "always-fires", message)
    elif not any(
        (isinstance(node, Binary) and (node.operator in COMPARISONS or node.operator in ("and", "unless")))
        or (isinstance(node, Call) and node.function.startswith("absent"))
        for node, _ in walk(tree)
    ):
        selected = [use.selector for use in metric_uses(tree)]
        counts = any(isinstance(node, Call) and node.function in _EVENTS for node, _ in walk(tree))
        # Without a metric it is an alert that is meant to fire for ever, as a heartbeat.
        if selected and (counts or not any(selector.metric is None or selector.matchers for selector in selected)):
            yield RuleProblem("wrong", "always-fires", "there is no comparison: the alert fires whenever there is data")


def _never_true(node: Binary) -> str:
    """Return why no values fulfil a comparison, whatever the ranges are, or ""."""
    numbers = [strip(side) for side in (node.left, node.right)]
    if any(isinstance(side, Number) and isnan(side.value) for side in numbers) and node.operator != "!=":
        return "a comparison with NaN is never true"
    same = not node.matching and render(numbers[0]) == render(numbers[1])
    return "both sides are the same" if same and node.operator in ("!=", "<", ">") else ""


def _without_itself(node: Binary) -> Iterator[RuleProblem]:
    if not node.matching and render(strip(node.left)) == render(strip(node.right)):
        message = "both sides of 'unless' are the same: there is no result"
        yield RuleProblem("never", "contradiction", message, _place(node))


def _kept(node: Node, value_range_of: Callable[[Node], Range]) -> tuple[Node, Range]:
    """Return the expression that comparisons with numbers filter, and the range of values that they keep."""
    base = strip(node)
    while isinstance(base, Binary) and base.operator in COMPARISONS and isinstance(strip(base.right), Number):
        base = strip(base.left)
    return base, value_range_of(node)


def _is_constant(node: Node) -> bool:
    node = strip(node)
    if isinstance(node, Binary) and node.operator == "or":
        return _is_constant(node.left) or _is_constant(node.right)
    return isinstance(node, Call) and node.function == "vector"


def _contradictions(node: Selector) -> Iterator[RuleProblem]:
    """Yield conditions on one label that no value fulfils."""
    by_label: dict[str, list[LabelMatcher]] = {}
    for matcher in node.matchers:
        by_label.setdefault(matcher.label, []).append(matcher)
    for label, matchers in by_label.items():
        values = {(matcher.operator, matcher.value) for matcher in matchers}
        opposite = any(operator == "=~" and ("!~", value) in values for operator, value in values)
        if opposite or ("!~", ".*") in values:
            yield RuleProblem("never", "contradiction", f"no value of '{label}' fulfils all conditions", node.place)
        for exact in [matcher for matcher in matchers if matcher.operator == "="]:
            try:
                contradicted = not all(matcher.matches(exact.value) for matcher in matchers)
            except re.error:
                continue
            if contradicted:
                message = f"no value of '{label}' fulfils all conditions"
                yield RuleProblem("never", "contradiction", message, node.place)
                break


def _unknown_values(node: Selector, values: Mapping[str, frozenset[str]]) -> Iterator[RuleProblem]:
    """Yield conditions that no value of a label fulfils, where all values are known."""
    for matcher in node.matchers:
        known = values.get(matcher.label)
        try:
            fulfilled = known is None or any(map(matcher.matches, known))
        except re.error:
            continue
        if known is not None and not fulfilled:
            message = (
                f"no series of '{node.metric}' has {matcher.label}{matcher.operator}\"{matcher.value}\";"
                f" the values are {', '.join(sorted(known))}"
            )
            yield RuleProblem("never", "unknown-value", message, node.place)


def _replaced_by_numbers(side: Node, matched: frozenset[str]) -> Iterator[RuleProblem]:
    """Yield label_replace calls that put a number from another label where names are matched."""
    for call, _ in walk(side):
        if not isinstance(call, Call) or call.function != "label_replace" or len(call.arguments) != 5:
            continue
        target, value, source = call.arguments[1:4]
        if not (isinstance(target, Text) and isinstance(value, Text) and isinstance(source, Text)):
            continue
        copies = "$" in value.value and target.value in matched and source.value != target.value
        if copies and _NUMERIC.search(source.value) and not _NUMERIC.search(target.value):
            message = (
                f"label_replace sets '{target.value}' to the value of '{source.value}', a number, so"
                f" on ({target.value}) matches no series: '{target.value}' is never that number"
            )
            yield RuleProblem("never", "label-replace", message, call.place)


def _as_is(node: Node) -> Selector | None:
    """Return the selector whose values an expression has as they are, or aggregated."""
    node = strip(node)
    if isinstance(node, Selector):
        return node if node.range_s is None else None
    if isinstance(node, Aggregation) and node.operator in _AS_IS:
        return _as_is(node.expr)
    if isinstance(node, Call) and node.function in _AS_IS:
        return _as_is(node.arguments[0])
    return None


def _quantile(node: Node, place: int) -> Iterator[RuleProblem]:
    node = strip(node)
    if isinstance(node, Number) and not 0 <= node.value <= 1:
        yield RuleProblem("wrong", "quantile", f"{node.value:g} is not a quantile between 0 and 1", place)


def _is_never(problems: Sequence[RuleProblem]) -> bool:
    return any(problem.verdict == "never" for problem in problems)


def _partly(problem: RuleProblem) -> RuleProblem:
    """Return the problem of an operand without which the expression can still have results."""
    return replace(problem, verdict="doubtful") if problem.verdict == "never" else problem


def _always(problem: RuleProblem) -> RuleProblem:
    if problem.verdict != "never":
        return problem
    return replace(problem, verdict="wrong", message=f"{problem.message}; absent is always true")


def _place(node: Node) -> int:
    """Return the place of the first metric of an expression."""
    return next((part.place for part, _ in walk(node) if isinstance(part, Selector | Call | Aggregation)), 0)
