"""PromQL over the history of a simulation: counters and gauges of an average pod, by second.

All pods have equal values, so a vector is one number and a count.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import TypeAlias

from conch.base.errors import ConfigError
from conch.operate.monitoring.promql import (
    Aggregation,
    Binary,
    Call,
    Negation,
    Node,
    Number,
    Parentheses,
    PromqlError,
    Selector,
    Subquery,
    parse,
    strip,
)
from conch.operate.monitoring.rules.shipped_alerts import recording_rules
from conch.operate.scaling.simulation.queue_model import ServiceModel

# Returns the value at a second, or None where the series is absent.
Evaluation: TypeAlias = Callable[[float], float | None]

# Names that prometheus-adapter serves, and what they are.
_ADAPTED = {"conch_requests_per_second": "rate(nv_inference_request_success[1m])"}
_RECORDED = {rule.name: rule.expr for rule in recording_rules().rules if "sum by" not in rule.expr}
# Adapters are often configured to serve names without colons.
_UNDERSCORED = {
    name.replace(":", "_"): name for name in (*_RECORDED, "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
}
_POD_LABELS = frozenset({"pod", "instance", "pod_name", "kubernetes_pod_name"})
_DEFAULT_SUBQUERY_STEP_S = 60.0
_US = 1e6


@dataclass(slots=True)
class History:
    """Values by second. Counters are those of a pod that has always run; `age_share` makes them those of pods alive."""

    served: list[float] = field(default_factory=list)
    queue_s: list[float] = field(default_factory=list)
    first_token_s: list[float] = field(default_factory=list)
    compute_s: list[float] = field(default_factory=list)
    executions: list[float] = field(default_factory=list)
    busy_s: list[float] = field(default_factory=list)
    waiting: list[float] = field(default_factory=list)
    running: list[float] = field(default_factory=list)
    pods: list[int] = field(default_factory=list)
    age_share: list[float] = field(default_factory=list)

    def append(
        self,
        served: float,
        queue_s: float,
        first_token_s: float,
        compute_s: float,
        executions: float,
        busy_s: float,
        waiting: float,
        running: float,
        pods: int,
        age_share: float,
    ) -> None:
        """Add a second: increases of counters, gauges, pods that are scraped."""
        for counter, increase in (
            (self.served, served),
            (self.queue_s, queue_s),
            (self.first_token_s, first_token_s),
            (self.compute_s, compute_s),
            (self.executions, executions),
            (self.busy_s, busy_s),
        ):
            counter.append((counter[-1] if counter else 0.0) + increase)
        self.waiting.append(waiting)
        self.running.append(running)
        self.pods.append(pods)
        self.age_share.append(age_share)


@dataclass(frozen=True, slots=True)
class MetricDelays:
    """How old values are when an autoscaler reads them."""

    scrape_interval_s: int = 15
    rule_interval_s: int = 15
    adapter_lag_s: int = 0


@dataclass(frozen=True, slots=True)
class CompiledQuery:
    """A compiled query; `per_pod` if its result has a series for each pod."""

    evaluate: Evaluation
    per_pod: bool


class QueryCompiler:
    """Compiles queries over one history."""

    def __init__(self, history: History, service: ServiceModel, timing: MetricDelays) -> None:
        self._history, self._service, self._timing = history, service, timing
        self._counters, self._gauges = _columns(history, service)

    def compile(self, text: str) -> CompiledQuery:
        """Return the series of a query, or of a metric of the custom metrics API. Raises ConfigError."""
        try:
            tree = parse(_ADAPTED.get(text) or _UNDERSCORED.get(text) or text)
        except PromqlError as error:
            raise ConfigError(f"query '{text}': {error}") from None
        series = self._node(tree, text)
        lag = self._timing.adapter_lag_s
        return CompiledQuery(lambda at_s: series.evaluate(at_s - lag), series.per_pod)

    def names(self) -> list[str]:
        """Return the metrics that the simulation has."""
        return sorted([*self._counters, *self._gauges, *_RECORDED, *_ADAPTED])

    def _node(self, node: Node, text: str) -> CompiledQuery:
        match strip(node):
            case Number(value=value):
                return CompiledQuery(lambda _: value, per_pod=False)
            case Selector() as selector:
                return self._selector(selector, text)
            case Negation(expr=expr):
                inner = self._node(expr, text)
                return CompiledQuery(
                    lambda at_s: None if (got := inner.evaluate(at_s)) is None else -got, inner.per_pod
                )
            case Aggregation() as aggregation:
                return self._aggregation(aggregation, text)
            case Binary() as binary:
                return self._binary(binary, text)
            case Call() as call:
                return self._call(call, text)
            case Parentheses() | Subquery() | _:
                raise ConfigError(f"query '{text}': not supported in a simulation: {type(node).__name__}")

    def _selector(self, selector: Selector, text: str) -> CompiledQuery:
        name = selector.metric or ""
        if name in _RECORDED:
            inner = self._node(parse(_RECORDED[name]), text)
            interval = self._timing.rule_interval_s
            return CompiledQuery(lambda at_s: inner.evaluate(at_s // interval * interval), per_pod=True)
        if name in self._gauges:
            gauge = self._gauges[name]
            return CompiledQuery(
                lambda at_s: gauge(self._scraped(at_s)) if self._has_pods(at_s) else None, per_pod=True
            )
        if name in self._counters:
            column, factor = self._counters[name]
            ages = self._history.age_share

            def raw(at_s: float) -> float | None:
                index = self._scraped(at_s)
                return column[index] * factor * ages[index] if self._has_pods(at_s) else None

            return CompiledQuery(raw, per_pod=True)
        raise ConfigError(f"query '{text}': the simulation has no metric '{name}'; it has {', '.join(self.names())}")

    def _has_pods(self, at_s: float) -> bool:
        index = self._scraped(at_s)
        return 0 <= index < len(self._history.pods) and self._history.pods[index] > 0

    def _scraped(self, at_s: float) -> int:
        interval = self._timing.scrape_interval_s
        return int(at_s // interval * interval)

    def _aggregation(self, node: Aggregation, text: str) -> CompiledQuery:
        inner = self._node(node.expr, text)
        keeps_pods = (node.grouping == "by" and bool(_POD_LABELS & set(node.labels))) or (
            node.grouping == "without" and not _POD_LABELS & set(node.labels)
        )
        if node.operator not in {"sum", "avg", "max", "min", "count"}:
            raise ConfigError(f"query '{text}': {node.operator} is not supported in a simulation")
        if keeps_pods or not inner.per_pod:
            return inner
        if node.operator in {"avg", "max", "min"}:
            return CompiledQuery(inner.evaluate, per_pod=False)
        is_count = node.operator == "count"

        def total(at_s: float) -> float | None:
            value = inner.evaluate(at_s)
            pods = self._history.pods[self._scraped(at_s)] if value is not None else 0
            return None if value is None else float(pods) * (1.0 if is_count else value)

        return CompiledQuery(total, per_pod=False)

    def _binary(self, node: Binary, text: str) -> CompiledQuery:
        left, right = self._node(node.left, text), self._node(node.right, text)
        operate = _BINARY.get(node.operator)
        if operate is None:
            raise ConfigError(f"query '{text}': {node.operator} is not supported in a simulation")
        first, second, returns_bool = left.evaluate, right.evaluate, node.returns_bool

        def evaluate(at_s: float) -> float | None:
            result = operate(first(at_s), second(at_s))
            return float(result is not None) if returns_bool else result

        return CompiledQuery(evaluate, left.per_pod or right.per_pod)

    def _call(self, node: Call, text: str) -> CompiledQuery:
        name, arguments = node.function, [strip(argument) for argument in node.arguments]
        if name in {"rate", "irate", "increase"} and isinstance(arguments[0], Selector):
            return self._rate(arguments[0], name, text)
        if name in _OVER_TIME and isinstance(arguments[0], Selector | Subquery):
            return self._over_time(name, arguments, text)
        if name in {"clamp_min", "clamp_max"}:
            inner, bound = self._node(arguments[0], text), self._node(arguments[1], text)
            choose = max if name == "clamp_min" else min
            return CompiledQuery(
                lambda at_s: _chosen(choose, inner.evaluate(at_s), bound.evaluate(at_s)), inner.per_pod
            )
        if name in {"scalar", "vector"}:
            return CompiledQuery(self._node(arguments[0], text).evaluate, per_pod=False)
        raise ConfigError(f"query '{text}': {name} is not supported in a simulation")

    def _rate(self, selector: Selector, function: str, text: str) -> CompiledQuery:
        if selector.metric is None or selector.metric not in self._counters:
            raise ConfigError(
                f"query '{text}': {function} needs a counter, got '{selector.metric}'; "
                f"counters: {', '.join(sorted(self._counters))}"
            )
        column, factor = self._counters[selector.metric]
        interval = self._timing.scrape_interval_s
        window = selector.range_s or 0.0
        # A window holds as many samples as scrapes fit in it, one interval less lies between them.
        span = interval if function == "irate" else max(int(window // interval) - 1, 0) * interval
        scale = factor * (window if function == "increase" else 1.0)

        def rate(at_s: float) -> float | None:
            last = self._scraped(at_s)
            first = last - span
            if first < 0 or not span or not self._has_pods(at_s):
                return None
            return (column[last] - column[first]) / span * scale

        return CompiledQuery(rate, per_pod=True)

    def _over_time(self, name: str, arguments: list[Node], text: str) -> CompiledQuery:
        source = arguments[0]
        if isinstance(source, Subquery):
            inner = self._node(source.expr, text)
            window, step = source.range_s, source.step_s or _DEFAULT_SUBQUERY_STEP_S
        elif isinstance(source, Selector):
            inner = self._node(Selector(source.metric), text)
            window, step = source.range_s or 0.0, float(self._timing.scrape_interval_s)
        else:
            raise ConfigError(f"query '{text}': {name} needs a range")
        horizon = arguments[1].value if len(arguments) > 1 and isinstance(arguments[1], Number) else 0.0
        reduce, count = _OVER_TIME[name], max(int(window // step), 1)

        def evaluate(at_s: float) -> float | None:
            last = at_s // step * step
            points = [
                (moment - at_s, value)
                for index in range(count)
                if (moment := last - index * step) >= 0 and (value := inner.evaluate(moment)) is not None
            ]
            return reduce(points, horizon) if points else None

        return CompiledQuery(evaluate, inner.per_pod)


def _columns(
    history: History, service: ServiceModel
) -> tuple[Mapping[str, tuple[list[float], float]], Mapping[str, Callable[[int], float]]]:
    """Return counters with their factors, and gauges, by name of the metric."""
    counters = {
        "nv_inference_request_success": (history.served, 1.0),
        "nv_inference_count": (history.served, 1.0),
        "nv_inference_exec_count": (history.executions, 1.0),
        "nv_inference_queue_duration_us": (history.queue_s, _US),
        "nv_inference_compute_infer_duration_us": (history.compute_s, _US),
        "conch_instance_busy_seconds_total": (history.busy_s, float(service.servers)),
        "vllm:request_success_total": (history.served, 1.0),
        "vllm:request_queue_time_seconds_sum": (history.queue_s, 1.0),
        "vllm:request_queue_time_seconds_count": (history.served, 1.0),
        "vllm:time_to_first_token_seconds_sum": (history.first_token_s, 1.0),
        "vllm:time_to_first_token_seconds_count": (history.served, 1.0),
    }
    gauges: dict[str, Callable[[int], float]] = {
        "nv_inference_pending_request_count": lambda index: history.waiting[index],
        "vllm:num_requests_waiting": lambda index: history.waiting[index],
        "vllm:num_requests_running": lambda index: history.running[index],
        "vllm:kv_cache_usage_perc": lambda index: min(history.running[index] * service.kv_per_running, 1.0),
        "conch_instances": lambda _: float(service.servers),
        "DCGM_FI_DEV_GPU_UTIL": lambda index: 100.0 * (history.busy_s[index] - history.busy_s[max(index - 1, 0)]),
        "up": lambda _: 1.0,
    }
    return counters, gauges


def _chosen(choose: Callable[..., float], value: float | None, bound: float | None) -> float | None:
    return None if value is None or bound is None else choose(value, bound)


def _arithmetic(operate: Callable[[float, float], float]) -> Callable[[float | None, float | None], float | None]:
    def apply(left: float | None, right: float | None) -> float | None:
        if left is None or right is None:
            return None
        try:
            result = operate(left, right)
        except ZeroDivisionError:
            return None  # NaN or infinity, of which an autoscaler makes nothing
        return result if isfinite(result) else None

    return apply


def _comparison(holds: Callable[[float, float], bool]) -> Callable[[float | None, float | None], float | None]:
    return lambda left, right: left if left is not None and right is not None and holds(left, right) else None


_BINARY: Mapping[str, Callable[[float | None, float | None], float | None]] = {
    "+": _arithmetic(lambda a, b: a + b),
    "-": _arithmetic(lambda a, b: a - b),
    "*": _arithmetic(lambda a, b: a * b),
    "/": _arithmetic(lambda a, b: a / b),
    "%": _arithmetic(lambda a, b: a % b),
    ">": _comparison(lambda a, b: a > b),
    "<": _comparison(lambda a, b: a < b),
    ">=": _comparison(lambda a, b: a >= b),
    "<=": _comparison(lambda a, b: a <= b),
    "or": lambda left, right: right if left is None else left,
    "and": lambda left, right: left if right is not None else None,
    "unless": lambda left, right: left if right is None else None,
}

Points: TypeAlias = list[tuple[float, float]]


def _predict(points: Points, horizon_s: float) -> float | None:
    if len(points) < 2:
        return None
    mean_t = sum(at for at, _ in points) / len(points)
    mean_v = sum(value for _, value in points) / len(points)
    spread = sum((at - mean_t) ** 2 for at, _ in points)
    slope = sum((at - mean_t) * (value - mean_v) for at, value in points) / spread
    return mean_v + slope * (horizon_s - mean_t)


_OVER_TIME: Mapping[str, Callable[[Points, float], float | None]] = {
    "predict_linear": _predict,
    "avg_over_time": lambda points, _: sum(value for _, value in points) / len(points),
    "max_over_time": lambda points, _: max(value for _, value in points),
    "min_over_time": lambda points, _: min(value for _, value in points),
    "last_over_time": lambda points, _: points[0][1],
}
