"""Find alerts that fire at the wrong time: on a single scrape, on restarts, for the wrong unit, or nearly never."""

from collections.abc import Callable, Iterator

from conch.operate.monitoring.promql import (
    COMPARISONS,
    Aggregation,
    Binary,
    Call,
    Node,
    Number,
    Selector,
    Subquery,
    strip,
    walk,
)
from conch.operate.monitoring.rules.known_metrics import KnownMetric
from conch.operate.monitoring.rules.result_types import Range
from conch.operate.monitoring.rules.user_rules import RuleProblem, UserRule

_OF_COUNTERS = ("rate", "irate", "increase")
_OF_SAMPLES = ("avg_over_time", "sum_over_time", "min_over_time", "max_over_time", "quantile_over_time")
_LATENCIES = ("duration", "latency", "time_to", "_delay")
_MIN_SUSPICIOUS_S = 100  # a limit of a latency in seconds above this is probably meant in milliseconds
_PERCENT: Range = (0, 100)
_STATES = ("up", "probe_success")

Known = Callable[[Selector], KnownMetric | None]


def misfires(rule: UserRule, tree: Node, known: Known, range_of: Callable[[Node], Range]) -> Iterator[RuleProblem]:
    """Yield why an alert fires at the wrong time."""
    for node, _ in walk(tree):
        if isinstance(node, Call):
            yield from _call(node, known)
        elif isinstance(node, Aggregation):
            yield from _aggregation(node)
        elif isinstance(node, Binary) and node.operator in COMPARISONS and not node.returns_bool:
            yield from _comparison(node, known)
    top = strip(tree)
    if isinstance(top, Binary) and top.operator in COMPARISONS and not top.returns_bool:
        yield from _always_true(top, range_of)
    if rule.for_s == 0 and "for" not in rule.document:
        yield from _without_hold_time(tree, known)


def _call(node: Call, known: Known) -> Iterator[RuleProblem]:
    buckets = strip(node.arguments[-1]) if node.function == "histogram_quantile" else None
    selector = None if buckets is None else _plain(buckets)
    if selector is not None and (selector.metric or "").endswith("_bucket"):
        message = f"the quantile is of all observations since the start; use rate({selector.metric}[5m])"
        yield RuleProblem("wrong" if known(selector) else "doubtful", "raw-counter", message, node.place)
    for argument in node.arguments:
        inner = strip(argument)
        if isinstance(inner, Subquery) and node.function in _OF_COUNTERS:
            summed = strip(inner.expr)
            if isinstance(summed, Aggregation):
                message = (
                    f"{node.function} of {summed.operator}(…): a restart of one target looks like a restart of all;"
                    f" aggregate after {node.function}"
                )
                yield RuleProblem("wrong", "rate-of-aggregate", message, node.place)
        if not isinstance(inner, Selector) or inner.range_s is None:
            continue
        metric, name = known(inner), inner.metric or ""
        if node.function in _OF_SAMPLES and _is_counter(metric, name):
            message = f"{node.function} of the counter '{name}' grows for ever; use rate or increase"
            yield RuleProblem("wrong" if metric else "doubtful", "raw-counter", message, node.place)
        if node.function == "changes" and _is_counter(metric, name):
            message = f"changes of the counter '{name}' counts scrapes at which it grew; use increase"
            yield RuleProblem("wrong" if metric else "doubtful", "changes-of-counter", message, node.place)
        if node.function == "resets" and metric is not None and not metric.is_counter:
            message = f"resets of the gauge '{name}' counts each fall; use changes or min_over_time"
            yield RuleProblem("wrong", "rate-of-gauge", message, node.place)
        if node.function == "changes" and metric is not None and _is_state(metric, name):
            message = f"changes of '{name}' also counts recoveries; use avg_over_time, or compare it and set for"
            yield RuleProblem("doubtful", "flapping", message, node.place)


def _aggregation(node: Aggregation) -> Iterator[RuleProblem]:
    inner = strip(node.expr)
    quantiles = isinstance(inner, Call) and inner.function == "histogram_quantile"
    summary = isinstance(inner, Selector) and any(matcher.label == "quantile" for matcher in inner.matchers)
    if node.operator in ("sum", "avg") and (quantiles or summary):
        message = f"{node.operator} of quantiles is not a quantile; aggregate the buckets by le instead"
        yield RuleProblem("doubtful", "aggregated-quantiles", message, node.place)


def _comparison(node: Binary, known: Known) -> Iterator[RuleProblem]:
    number = strip(node.right)
    side = strip(node.left)
    if not isinstance(number, Number):
        return
    if node.operator == "==" and isinstance(side, Call) and side.function in _OF_COUNTERS and number.value:
        message = f"{side.function} extrapolates, so that its result is rarely {number.value:g}; use >="
        yield RuleProblem("wrong", "exact-rate", message, side.place)
    selector = _plain(side)
    if selector is not None:
        metric, name = known(selector), selector.metric or ""
        unit = metric.definition.unit if metric else ""
        if unit == "percent" and 0 < number.value < 1:
            message = (
                f"'{name}' is a percentage from 0 to 100, and {number.value:g} looks like a share; multiply by 100"
            )
            yield RuleProblem("wrong", "unit-mismatch", message, selector.place)
        raw = metric is None and name.endswith("_total") and number.value > 1 and node.operator in (">", ">=")
        if raw:
            message = (
                f"'{name}' looks like a counter, which only grows: the comparison stays true; use increase or rate"
            )
            yield RuleProblem("doubtful", "raw-counter", message, selector.place)
    if node.operator in (">", ">=") and number.value >= _MIN_SUSPICIOUS_S and _is_latency(side):
        message = f"{number.value:g} s is long for a latency; the metric is in seconds, not milliseconds"
        yield RuleProblem("doubtful", "unit-mismatch", message)


def _always_true(node: Binary, range_of: Callable[[Node], Range]) -> Iterator[RuleProblem]:
    """Yield comparisons that hold for all values of a ratio or a percentage: of a wrong unit."""
    low, high = range_of(node.left)
    number = strip(node.right)
    if not isinstance(number, Number) or low == high or high > _PERCENT[1] or low < 0:
        return
    limit = number.value
    if (node.operator in ("<", "<=") and limit > high) or (node.operator in (">", ">=") and limit < low):
        message = (
            f"the comparison {node.operator} {limit:g} is always true: the values are between {low:g} and {high:g}"
        )
        yield RuleProblem("wrong", "always-fires", message)


def _without_hold_time(tree: Node, known: Known) -> Iterator[RuleProblem]:
    top = strip(tree)
    if isinstance(top, Call) and top.function == "absent":
        message = "fires as soon as one scrape is missing, also at each restart; set for, or for: 0s if that is meant"
        yield RuleProblem("doubtful", "flapping", message, top.place)
    if not isinstance(top, Binary) or top.operator not in COMPARISONS or not isinstance(strip(top.right), Number):
        return
    selector = _plain(top.left)
    metric = None if selector is None else known(selector)
    if selector is not None and _is_state(metric, selector.metric or ""):
        message = f"fires on a single scrape of '{selector.metric}'; set for, or for: 0s if that is meant"
        yield RuleProblem("doubtful", "flapping", message, selector.place)
    for node, _ in walk(top):
        if isinstance(node, Call) and node.function == "irate":
            message = "irate looks at two samples, so that the alert flaps; use rate, or set for"
            yield RuleProblem("doubtful", "flapping", message, node.place)


def _plain(node: Node) -> Selector | None:
    """Return the selector of an expression without functions but for aggregations."""
    node = strip(node)
    if isinstance(node, Aggregation) and node.operator in ("sum", "avg", "min", "max"):
        node = strip(node.expr)
    return node if isinstance(node, Selector) and node.range_s is None else None


def _is_counter(metric: KnownMetric | None, name: str) -> bool:
    return metric.is_counter if metric else name.endswith("_total")


def _is_state(metric: KnownMetric | None, name: str) -> bool:
    """Return whether a metric is 1 while something works and 0 while it does not."""
    return name in _STATES or (metric is not None and name.endswith(("_up", "_ready")))


def _is_latency(node: Node) -> bool:
    """Return whether values are of a latency in seconds, by the name of the metric."""
    names = [selector.metric or "" for selector, _ in walk(node) if isinstance(selector, Selector)]
    quantile = isinstance(node, Call) and node.function == "histogram_quantile"
    return quantile and any("_seconds" in name and any(word in name for word in _LATENCIES) for name in names)
