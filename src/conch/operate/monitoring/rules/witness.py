"""Series that may make an alert fire: candidates by kind and unit, tried by promtool."""

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, product
from typing import Any

from conch.operate.monitoring.promql import (
    Aggregation,
    Binary,
    Call,
    LabelMatcher,
    Node,
    Number,
    Selector,
    Subquery,
    Text,
    duration,
    metric_uses,
    render,
    rewrite,
    walk,
)
from conch.operate.monitoring.rules.known_metrics import KnownMetric, MetricTable
from conch.operate.monitoring.rules.result_types import is_scalar
from conch.operate.monitoring.rules.rule import AlertingRule, InputSeries, counter, gauge
from conch.operate.monitoring.rules.user_rules import UserRule

_MAX_CANDIDATES = 150
_MAX_EVALUATIONS = 20_000
_STEPS = 100
_MAX_STEPS = 1500
_SAMPLES = {"version": "1", "job": "conch", "instance": "a:8002", "quantile": "0.99", "reason": "BACKEND"}
_EDGES = ("0.001", "0.1", "1", "10", "100", "10000", "1e+07", "+Inf")
_OF_COUNTERS = ("rate", "irate", "increase", "resets")
_HIGH = 1e9
# Of the queries for series that fire, and for a finite value.
_FIRED, _FINITE = "0", "0.0"
_EXTREMES = 3  # shapes that come first: high and low values, rates of 0 and more
_FIRST_BATCH, _BATCH_GROWTH = 10, 4


@dataclass(frozen=True, slots=True)
class WitnessSearch:
    """A test file of promtool in which the candidates that fire the alert are the tests that fail.

    `divides`: the value may be infinite, and tests also fail if it is finite.
    """

    document: dict[str, Any]
    candidates: tuple[tuple[InputSeries, ...], ...]
    divides: bool = False

    def batches(self) -> "Iterator[WitnessSearch]":
        """Yield parts of the search, small ones first: most alerts fire by one of the first candidates."""
        start, size = 0, _FIRST_BATCH
        while start < len(self.candidates):
            tests = self.document["tests"][start : start + size]
            yield WitnessSearch({**self.document, "tests": tests}, self.candidates, self.divides)
            start, size = start + size, size * _BATCH_GROWTH


@dataclass(frozen=True, slots=True)
class Witness:
    """Series that fire an alert; `infinite` if its value is then infinite, as after a division by zero."""

    series: tuple[InputSeries, ...]
    infinite: bool = False


@dataclass(frozen=True, slots=True)
class _Clock:
    interval_s: int
    end_s: float


def expand_records(tree: Node, recorded: Mapping[str, Node], depth: int = 0) -> Node:
    """Return an expression whose records are replaced by their expressions."""

    def expanded(node: Node) -> Node:
        if isinstance(node, Selector) and node.metric in recorded and depth < 8:
            return _restricted(expand_records(recorded[node.metric or ""], recorded, depth + 1), node.matchers)
        return node

    return rewrite(tree, expanded)


def _restricted(tree: Node, matchers: tuple[LabelMatcher, ...]) -> Node:
    """Return an expression whose selectors also fulfil the conditions on a record's labels."""

    def restricted(node: Node) -> Node:
        return replace(node, matchers=(*node.matchers, *matchers)) if isinstance(node, Selector) else node

    return rewrite(tree, restricted) if matchers else tree


def witness_search(rule: UserRule, tree: Node, table: MetricTable, rules_path: str) -> WitnessSearch:
    """Return a search for series that fire an alert, whose records are expanded in `tree`."""
    selectors = _distinct(tree)
    clock = _clock(tree, rule.for_s)
    steps = max(int(clock.end_s / clock.interval_s), 1)
    limit = max(min(_MAX_CANDIDATES, _MAX_EVALUATIONS // steps), 8)
    labels = _mentioned(tree)
    divides = rule.expr if _divides(tree) else ""
    constants = {abs(node.value) for node, _ in walk(tree) if isinstance(node, Number)}
    # Products are of thresholds with units, such as 3 days.
    constants |= {a * b for a in constants for b in constants if a > 1 and b > 1} if len(constants) <= 4 else set()
    numbers = sorted(constant for constant in constants if constant < _HIGH)
    may_be_absent = any(
        (isinstance(node, Call) and node.function.startswith(("absent", "vector")))
        or (isinstance(node, Binary) and node.operator == "unless")
        for node, _ in walk(tree)
    )
    counters = {use.selector.metric for use in metric_uses(tree) if use.functions and use.functions[0] in _OF_COUNTERS}
    values = _Values(table, frozenset(filter(None, counters)), numbers)
    shapes = [_shapes(selector, labels, values, clock) for selector in selectors]
    if may_be_absent:
        shapes = [[*shape, ()] for shape in shapes]
    candidates = tuple(_combinations(shapes, limit))
    document = {
        "rule_files": [rules_path],
        "evaluation_interval": duration(clock.interval_s),
        "tests": [
            _test(rule.name, index, series, clock.interval_s, clock.end_s, divides)
            for index, series in enumerate(candidates)
        ],
    }
    return WitnessSearch(document, candidates, bool(divides))


def proof_search(alert: AlertingRule, rules_path: str) -> WitnessSearch:
    """Return a search among the proofs of a shipped alert, for a rule of its name."""
    proofs = [proof for proof in alert.proofs if proof.fires]
    interval_s = max(proof.interval_s for proof in proofs)
    tests = [_test(alert.name, index, proof.series, proof.interval_s, proof.at_s) for index, proof in enumerate(proofs)]
    document = {"rule_files": [rules_path], "evaluation_interval": duration(interval_s), "tests": tests}
    return WitnessSearch(document, tuple(proof.series for proof in proofs))


def _divides(tree: Node) -> bool:
    """Return whether an expression divides by a vector, which can be 0."""
    return any(
        isinstance(node, Binary) and node.operator in ("/", "%") and not is_scalar(node.right) for node, _ in walk(tree)
    )


def _test(
    name: str, index: int, series: Sequence[InputSeries], interval_s: int, end_s: float, divides: str = ""
) -> dict[str, Any]:
    """Return a test of promtool that fails if series fire an alert until a time.

    `divides` is an expression that may be infinite: the test has a second failure if it is finite at a time.
    """
    window = duration(end_s)
    fired = f'sum(count_over_time(ALERTS{{alertname="{name}", alertstate="firing"}}[{window}]))'
    # The number of the candidate is part of the query, which promtool prints.
    queries = [f"{fired} + {_FIRED} * {index}"]
    if divides:
        finite = f"sum(count_over_time((abs({divides}) < Inf)[{window}:{duration(interval_s)}]))"
        queries.append(f"{finite} + {_FINITE} * {index}")
    return {
        "interval": duration(interval_s),
        "input_series": [{"series": member.series, "values": member.values} for member in series],
        "promql_expr_test": [{"expr": query, "eval_time": window, "exp_samples": []} for query in queries],
    }


def _clock(tree: Node, for_s: float) -> _Clock:
    ranges = [node.range_s for node, _ in walk(tree) if isinstance(node, Selector | Subquery) and node.range_s]
    offsets = [abs(node.offset_s) for node, _ in walk(tree) if isinstance(node, Selector | Subquery) and node.offset_s]
    end_s = max(for_s * 1.5 + sum(sorted(ranges)[-2:]) + max(offsets, default=0) * 1.2, 300)
    interval_s = max(end_s / _STEPS, 15)
    if ranges:
        interval_s = min(interval_s, max(min(ranges) / 4, 1))
    if for_s:
        interval_s = min(interval_s, max(for_s / 3, 1))
    interval_s = max(interval_s, end_s / _MAX_STEPS, 1)
    return _Clock(int(interval_s), end_s)


def _distinct(tree: Node) -> list[Selector]:
    """Return the selectors of different series, without ranges and offsets."""
    selectors: dict[str, Selector] = {}
    for node, _ in walk(tree):
        if isinstance(node, Selector):
            bare = replace(node, range_s=None, offset_s=None, at=None)
            selectors.setdefault(render(bare), bare)
    return list(selectors.values())


def _mentioned(tree: Node) -> frozenset[str]:
    """Return the labels that an expression uses: series of unknown metrics have all of them."""
    labels = set[str]()
    for node, _ in walk(tree):
        if isinstance(node, Aggregation) and node.grouping == "by":
            labels |= {*node.labels}
        elif isinstance(node, Binary):
            labels |= {*node.labels, *node.group_labels} if node.matching == "on" else set()
        elif isinstance(node, Call) and node.function == "label_replace" and isinstance(node.arguments[3], Text):
            labels.add(node.arguments[3].value)
    return frozenset(labels - {"le"})


@dataclass(frozen=True, slots=True)
class _Values:
    """What is known of values: metrics, those that a function of counters is applied to, and numbers to be near to."""

    table: MetricTable
    counters: frozenset[str]
    numbers: Sequence[float]

    def is_counter(self, name: str, metric: KnownMetric | None) -> bool:
        """Return whether a metric only grows."""
        if metric:
            return metric.is_counter
        return name in self.counters or name.endswith(("_total", "_sum", "_count"))


def _shapes(
    selector: Selector, mentioned: frozenset[str], values: _Values, clock: _Clock
) -> list[tuple[InputSeries, ...]]:
    """Return ways in which the series of a selector can develop."""
    name = selector.metric or "unnamed"
    metric, numbers = values.table.find(name), values.numbers
    names = (metric.labels if metric else mentioned | {"job", "instance"}) - {"le"}
    labels = {label: _SAMPLES.get(label, "x") for label in sorted(names)}
    for matcher in selector.matchers:
        if matcher.label not in ("__name__", "le") and (value := _sample(matcher)):
            labels[matcher.label] = value
    if name.endswith("_bucket"):
        return [_histogram(name, labels, edge, clock) for edge in _EDGES]
    end, step = clock.end_s, clock.interval_s
    if values.is_counter(name, metric):
        rates = [0.0, 1.0, 1e6, *(number * factor for number in numbers[-3:] for factor in (0.5, 1.1)), _HIGH]
        even = [(counter(name, labels, (rate, end), interval_s=step),) for rate in dict.fromkeys(rates)]
        jump = counter(name, labels, (0, end / 2), (1000 / step, step), (0, end / 2), interval_s=step)
        late = gauge(name, labels, (None, end / 2), (1, end / 2), interval_s=step)
        faster = counter(name, labels, *((i / 20, end / 20) for i in range(21)), interval_s=step)
        return [*even, (jump,), (late,), (faster,)]
    low, high = values.table.value_range(name)
    low, high = max(low, -_HIGH), min(high, _HIGH)
    close = (number * factor for number in numbers[-4:] for factor in (1.02, 1, 0.98))
    near = [value for value in close if low <= value <= high]
    levels = [high, low, *near, (low + high) / 2]
    even = [(gauge(name, labels, (level, end), interval_s=step),) for level in dict.fromkeys(levels)]
    rise = gauge(name, labels, *((low + (high - low) * i / 10, end / 10) for i in range(11)), interval_s=step)
    fall = gauge(name, labels, *((high - (high - low) * i / 10, end / 10) for i in range(11)), interval_s=step)
    other = {label: "b" if label in mentioned or label == "instance" else value for label, value in labels.items()}
    for matcher in selector.matchers:
        if matcher.label in other:
            other[matcher.label] = labels.get(matcher.label, "")
    elsewhere = {**labels, "instance": "b:8002"}
    pairs = [
        (gauge(name, labels, (high, end), interval_s=step), gauge(name, others, (level, end), interval_s=step))
        for others, level in ((elsewhere, low), (other, high), (other, 1.0))
    ]
    return [*even, (rise,), (fall,), *pairs]


def _histogram(name: str, labels: Mapping[str, str], edge: str, clock: _Clock) -> tuple[InputSeries, ...]:
    """Return the buckets of a histogram whose observations are all below one edge."""
    first = _EDGES.index(edge)
    return tuple(
        counter(name, {**labels, "le": bound}, (10.0 * (index >= first), clock.end_s), interval_s=clock.interval_s)
        for index, bound in enumerate(_EDGES)
    )


def _sample(matcher: LabelMatcher) -> str:
    """Return a value that fulfils a condition, or "" if none is found."""
    plain = matcher.value.replace(".*", "").replace(".+", "x").replace("\\", "").strip("^$()?")
    example = _example(matcher.value)
    for value in (_SAMPLES.get(matcher.label, "x"), matcher.value, *plain.split("|"), plain, example, "y", "1", "/"):
        try:
            if value and matcher.matches(value):
                return value
        except re.error:  # RE2 knows expressions that Python does not
            continue
    return ""


def _example(pattern: str) -> str:
    """Return a text that probably matches a regular expression: its first alternatives, with 0 for any character."""
    text = pattern.strip("^$")
    for _ in range(10):
        shorter = re.sub(r"\((?:\?:)?([^()|]*)(?:\|[^()]*)?\)[*+?]?", r"\1", text)
        if shorter == text:
            break
        text = shorter
    text = re.sub(r"\[([^\]^])[^\]]*\]|\\d", lambda match: match[1] or "0", text.partition("|")[0])
    return re.sub(r"\.[*+]?", "0", re.sub(r"\\(.)", r"\1", text)).strip("^$*+?")


def _combinations(shapes: list[list[tuple[InputSeries, ...]]], limit: int) -> Iterator[tuple[InputSeries, ...]]:
    total = 1
    for shape in shapes:
        total *= len(shape)
    if total <= limit:
        combinations: Iterator[tuple[tuple[InputSeries, ...], ...]] = product(*shapes)
    else:
        chosen = random.Random(0)  # noqa: S311  # reproducible, not secret
        extremes = islice(product(*(shape[:_EXTREMES] for shape in shapes)), limit // 3)
        anything = (tuple(map(chosen.choice, shapes)) for _ in range(limit))
        # All series at the same level, too.
        combinations = islice(chain(extremes, zip(*shapes, strict=False), anything), limit)
    for combination in combinations:
        yield tuple({member.series: member for series in combination for member in series}.values())


def first_witness(search: WitnessSearch, output: str) -> Witness | None:
    """Return the first candidate that fired, preferably with a finite value, by what promtool printed."""
    fired, finite = _numbers(output, _FIRED), _numbers(output, _FINITE)
    best = min(fired, key=lambda index: (search.divides and index not in finite, index), default=None)
    return None if best is None else Witness(search.candidates[best], search.divides and best not in finite)


def _numbers(output: str, mark: str) -> set[int]:
    """Return the candidates whose query with a mark failed."""
    return {int(number) for number in re.findall(rf'expr: ".*\+ {re.escape(mark)} \* (\d+)"', output)}
