"""KEDA: ScaledObjects, formulas, activation, cooldown, fallback."""

from contextlib import suppress
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from conch.base.errors import ConfigError
from conch.operate.scaling.autoscaler import MetricReading, Pod
from conch.operate.scaling.hpa.spec import TargetType
from conch.operate.scaling.keda.controller import KedaController
from conch.operate.scaling.keda.formula import FormulaError, parse_formula
from conch.operate.scaling.keda.spec import read_scaled_object

SCALED_OBJECT = """
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {name: detector}
spec:
  scaleTargetRef: {name: detector}
  pollingInterval: 15
  cooldownPeriod: 120
  maxReplicaCount: 10
  fallback: {failureThreshold: 3, replicas: 6}
  triggers:
    - type: prometheus
      metadata:
        serverAddress: http://prometheus:9090
        query: sum(rate(nv_inference_request_success[1m]))
        threshold: "100"
        activationThreshold: "5"
        ignoreNullValues: "false"
"""
DOWN = MetricReading(error="Prometheus does not answer")
EMPTY = MetricReading()


def document(**spec: Any) -> dict[str, Any]:
    """Return the object above with other fields of its spec."""
    read: dict[str, Any] = yaml.safe_load(SCALED_OBJECT)
    read["spec"].update(spec)
    return read


def controller(**spec: Any) -> KedaController:
    """Return the controller of the object above."""
    return KedaController(read_scaled_object(document(**spec)))


def rate(value: float) -> list[MetricReading]:
    """Return the reading of one trigger."""
    return [MetricReading(value=value)]


def pods(count: int) -> list[Pod]:
    """Return ready pods."""
    return [Pod("ready", count=count)]


def test_the_hpa_that_keda_creates() -> None:
    hpa = read_scaled_object(document()).hpa()
    assert (hpa.name, hpa.min_replicas, hpa.max_replicas) == ("keda-hpa-detector", 1, 10)
    assert (hpa.metrics[0].target_type, hpa.metrics[0].target) == (TargetType.AVERAGE_VALUE, 100)


def trigger(**metadata: Any) -> list[dict[str, Any]]:
    """Return a list of one trigger."""
    return [{"type": "prometheus", "metadata": {"serverAddress": "http://x", "query": "up", **metadata}}]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"triggers": []}, "spec.triggers: expected at least one trigger"),
        (
            {"triggers": [{"type": "kafka", "metadata": {}}]},
            "spec.triggers[0].type: expected prometheus, cpu or memory",
        ),
        ({"triggers": trigger()}, "spec.triggers[0].metadata.threshold: required"),
        ({"triggers": trigger(threshold="many")}, "expected a number as text, such as '1.5', got 'many'"),
        ({"triggers": trigger(threshold="0")}, "expected a number above zero"),
        ({"triggers": trigger(threshold="1", thresholds="1")}, "unknown field; did you mean threshold?"),
        ({"minReplicaCount": 20}, "spec.maxReplicaCount: expected at least minReplicaCount (20), got 10"),
        ({"minReplicaCount": 2, "idleReplicaCount": 2}, "spec.idleReplicaCount: expected less than minReplicaCount"),
        ({"fallback": {"failureThreshold": 3}}, "spec.fallback.replicas: required"),
        (
            {"fallback": {"failureThreshold": -1, "replicas": 2}},
            "spec.fallback: FailureThreshold=-1 & Replicas=2 must both be greater than or equal to 0",
        ),
        ({"fallback": {"failureThreshold": 1, "replicas": -2}}, "must both be greater than or equal to 0"),
        (
            {"fallback": {"failureThreshold": 1, "replicas": 2, "behavior": "triggerScoped"}},
            "spec.fallback.behavior: triggerScoped needs a formula",
        ),
        (
            {"triggers": [{"type": "cpu", "metricType": "Utilization", "metadata": {"value": "60"}}]},
            "spec.fallback: needs a trigger other than cpu and memory",
        ),
        ({"cooldown": 3}, "spec.cooldown: unknown field; did you mean cooldownPeriod?"),
        (
            {"advanced": {"scalingModifiers": {"formula": "a +", "target": "1"}}},
            "expected a number, a name or (, got the",
        ),
        ({"advanced": {"scalingModifiers": {"formula": "x * 2", "target": "1"}}}, "'x' is not the name of a trigger"),
    ],
)
def test_invalid_objects_are_rejected_with_path_and_reason(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_scaled_object(document(**changed))
    assert message in str(raised.value)


def test_activation_and_cooldown() -> None:
    keda = controller()
    assert keda.poll(0, 0, rate(5)).desired == 0  # the threshold must be exceeded
    assert keda.poll(15, 0, rate(5.1)).desired == 1
    assert keda.poll(100, 3, rate(0)).reason == "ScalerCooldown"
    assert keda.poll(135, 3, rate(0)).desired == 3
    assert keda.poll(136, 3, rate(0)).desired == 0


def test_idle_replicas() -> None:
    keda = controller(minReplicaCount=3, idleReplicaCount=0)
    assert keda.poll(0, 0, rate(10)).desired == 3
    assert keda.poll(15, 1, rate(10)).desired == 3
    assert keda.poll(500, 3, rate(0)).desired == 0
    with_minimum = controller(minReplicaCount=2)
    assert with_minimum.poll(0, 1, rate(0)).desired == 2
    assert with_minimum.poll(9999, 5, rate(0)).desired == 5  # the HPA scales down to the minimum


def test_the_hpa_follows_the_average() -> None:
    assert controller().sync(0, 2, pods(2), rate(750)).desired == 4  # at most max(2 x 2, 4)
    assert controller().sync(0, 4, pods(4), rate(750)).desired == 8


@pytest.mark.parametrize(
    ("behavior", "replicas", "desired"),
    [
        ("static", 4, 6),
        ("currentReplicas", 4, 4),
        ("currentReplicasIfHigher", 8, 8),
        ("currentReplicasIfHigher", 4, 6),
        ("currentReplicasIfLower", 4, 4),
    ],
)
def test_prometheus_down_leads_to_the_fallback_after_the_threshold(behavior: str, replicas: int, desired: int) -> None:
    keda = controller(fallback={"failureThreshold": 3, "replicas": 6, "behavior": behavior})
    for at_s in (0, 15, 30):
        decision = keda.sync(at_s, replicas, pods(replicas), [DOWN])
        assert (decision.desired, decision.reason) == (replicas, "FailedGetExternalMetric")
    assert keda.sync(45, replicas, pods(replicas), [DOWN]).desired == desired


@given(replicas=st.integers(1, 10), polls=st.integers(1, 60), has_fallback=st.booleans())
def test_prometheus_down_scales_nothing_to_zero(replicas: int, polls: int, has_fallback: bool) -> None:
    keda = controller(**({} if has_fallback else {"fallback": None}))
    keda.poll(0, replicas, rate(10))
    for index in range(1, polls + 1):
        at_s = 1000 * index  # longer than the cooldown period
        assert keda.poll(at_s, replicas, [DOWN]).desired >= replicas
        assert keda.sync(at_s, replicas, pods(replicas), [DOWN]).desired >= min(replicas, 6)


def test_from_zero_replicas_a_fallback_does_not_scale_up() -> None:
    """The fallback is a value for the HPA, which is disabled at zero; KEDA itself only logs."""
    keda = controller()
    for index in range(5):
        assert keda.sync(15 * index, 0, [], [DOWN]).reason == "ScalingDisabled"
    decision = keda.poll(90, 0, [DOWN])
    assert (decision.desired, decision.reason) == (0, "TriggerError")


def test_a_fallback_to_no_replicas_does_not_keep_them() -> None:
    keda = controller(fallback={"failureThreshold": 3, "replicas": 0})
    keda.poll(0, 3, rate(10))
    assert keda.poll(100, 3, [DOWN]).reason == "ScalerCooldown"
    assert keda.poll(121, 3, [DOWN]).desired == 0


def test_a_trigger_that_cannot_be_read_does_not_prolong_the_activity_of_others() -> None:
    keda = controller(triggers=[*trigger(threshold="1"), *trigger(threshold="1")])
    keda.poll(0, 3, [*rate(10), *rate(10)])
    assert keda.poll(100, 3, [*rate(10), DOWN]).reason == "ScalerActive"
    assert keda.poll(121, 3, [*rate(0), *rate(0)]).desired == 0


@pytest.mark.parametrize(("ready", "desired"), [(4, 6), (2, 6), (8, 6), (0, 4)])
def test_a_fallback_of_a_value_counts_ready_replicas(ready: int, desired: int) -> None:
    """KEDA divides by the ready replicas, by which the HPA multiplies."""
    value = [{**trigger(threshold="100")[0], "metricType": "Value"}]
    keda = controller(triggers=value, fallback={"failureThreshold": 0, "replicas": 6})
    running = (
        [*pods(ready), Pod("starting", ready=False, count=4)] if ready else [Pod("starting", ready=False, count=4)]
    )
    decision = keda.sync(400, 4, running, [DOWN])
    assert decision.desired == desired
    assert (decision.reason == "FailedGetExternalMetric") is (ready == 0)


def modified(formula: str, **fallback: Any) -> KedaController:
    """Return a controller of the triggers a and b, whose formula has a target of 10."""
    two = [{"name": name, **trigger(threshold="1", ignoreNullValues="false")[0]} for name in "ab"]
    return controller(
        triggers=two,
        advanced={"scalingModifiers": {"formula": formula, "target": "10"}},
        fallback={"failureThreshold": 2, "replicas": 6, **fallback},
    )


def test_failing_triggers_are_nil_in_formulas_with_their_own_scope() -> None:
    keda = modified("(a ?? 30) + (b ?? 0)", behavior="triggerScoped")
    readings = [DOWN, MetricReading(value=40.0)]
    for at_s in (0, 15):
        assert keda.sync(at_s, 4, pods(4), readings).reason == "FailedGetExternalMetric"
    assert keda.sync(30, 4, pods(4), readings).desired == 7
    for at_s in (45, 60):
        assert keda.sync(at_s, 4, pods(4), [DOWN, DOWN]).reason == "FailedGetExternalMetric"  # b fails too seldom
    assert keda.sync(75, 4, pods(4), [DOWN, DOWN]).usage == (7.5,)  # 30 of 4 replicas
    plain = modified("a + b", behavior="triggerScoped")
    for at_s in (0, 15, 30):
        decision = plain.sync(at_s, 4, pods(4), readings)
    assert "nil is not a number" in decision.message


def test_a_fallback_needs_a_target_that_is_an_integer() -> None:
    """As in KEDA, which parses the target of scaling modifiers as an integer."""
    for target, desired in (("10", 6), ("10.5", 4)):
        keda = controller(
            triggers=[{"name": name, **trigger(threshold="1")[0]} for name in "ab"],
            advanced={"scalingModifiers": {"formula": "a + b", "target": target}},
            fallback={"failureThreshold": 0, "replicas": 6},
        )
        assert keda.sync(0, 4, pods(4), [DOWN, MetricReading(value=1.0)]).desired == desired


def test_an_empty_result_counts_as_zero_unless_it_is_an_error() -> None:
    """KEDA's default scales down when the metric goes missing; ignoreNullValues: "false" keeps the replicas."""
    strict = controller()
    assert strict.poll(1000, 5, [EMPTY]).desired == 5
    assert strict.sync(1000, 5, pods(5), [EMPTY]).reason == "FailedGetExternalMetric"
    lenient = controller(triggers=trigger(threshold="100"))
    assert lenient.poll(1000, 5, [EMPTY]).desired == 0


def test_scaling_modifiers_make_one_metric() -> None:
    two = [{"name": name, **trigger(threshold="1")[0]} for name in ("pending", "rps")]
    keda = controller(
        triggers=two,
        advanced={"scalingModifiers": {"formula": "max(pending * 10, rps)", "target": "100", "activationTarget": "3"}},
    )
    readings = [MetricReading(value=70.0), MetricReading(value=200.0)]
    assert keda.sync(0, 4, pods(4), readings).desired == 7
    assert keda.poll(0, 0, readings).desired == 1
    assert keda.poll(0, 0, [MetricReading(value=0.0), MetricReading(value=3.0)]).desired == 0
    for at_s in (15, 30, 45, 60):
        decision = keda.sync(at_s, 4, pods(4), [DOWN, MetricReading(value=1.0)])
    assert decision.desired == 7  # stabilized; the fallback asks for 6


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a + b * 2", 7),
        ("(a + b) * 2", 8),
        ("-a ** 2 + 2 ^ 3", 7),
        ("a > b ? 10 : 20", 20),
        ("a < b && b < 4 ? max(a, b, 9) : 0", 9),
        ("a == 1 or b == 7 ? 1 : 0", 1),
        ("!(a >= 1) || not (b != 3) ? 1 : 0", 1),
        ("ceil(1.2) + floor(1.8) + round(2.5) + abs(-1)", 7),
        ("mean(a, b) / sum([a, a])", 1),
        ("min(.5, 1e1)", 0.5),
        # The examples of KEDA's documentation.
        ("(a + b)/2", 2),
        ("a > 2 ? a + b : 1", 1),
        ("count([a,b,c],{#>1}) > 1 ? 5 : 0", 5),
        ("a < 2 ? a+b >= 2 ? 5 : 10 : 0", 5),
        ("float(a)", 1),
        ("n ?? 7", 7),
        ("a ?? 7", 1),
        ("n ?? n ?? a", 1),
        ("a + n ?? 2", 3),  # ?? binds stronger than +
        ("n == nil ? 2 : n", 2),
        ("5 / 2", 2.5),
        ("7 % 4 + int(b) % 2", 4),
        ("-7 % 4", -3),
        ("2 ** 3 ** 2", 512),
        ("-2 ** 2", -4),
        ("round(-2.5)", -3),
        ("max([a, b], 2)", 3),
        ("median([b, a, c])", 3),
        ("sum([a, b], # * 2)", 8),
        ("[a, b, c] | filter({# > 1}) | sum()", 8),
        ("sum(map(1..3, # ** 2))", 14),
        ("let x = a + b; x * x", 16),
        ("a in [1, 2] ? 1 : 0", 1),
        ("0 < a < b ? 1 : 0", 1),
        ("0 < b < a ? 1 : 0", 0),
        ("len([a, b]) + [a, b][1] + first([c]) + last([a])", 11),
        ("all([a, b], # > 0) && none([a], # > 1) && one([a, b], # > 1) && any([a], # == 1) ? 1 : 0", 1),
        ("false ? a : true ? b : c", 3),
        ("1_000 + 0x10", 1016),
        ("find([a, b, c], # > 1)", 3),
    ],
)
def test_formulas(text: str, value: float) -> None:
    assert parse_formula(text).value({"a": 1.0, "b": 3.0, "c": 5.0, "n": None}) == value


INVALID = (
    *("", "a b", "a +", "(a", "a ? b", "import('os')", "a; b", "'x'", "a.b", "max()", "abs(a, b)", "a > 1", "true"),
    *("nil", "[a]", "a ?? 0 + b", "#", "count(1)", "count([a], {#)", "1 + (a > 1)", "(a > 1) + 1", "!a + (b > 1)"),
    *("1 ? a : b", "sum(1)", "let x = 1", "let 1 = 2; 3", "a |", "a | b", "a[", "x(1)", "not 1 > 2"),
)


@pytest.mark.parametrize("text", INVALID)
def test_invalid_formulas_are_rejected(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_formula(text)


WITHOUT_VALUE = (
    *("a / 0", "(0 - 1) ** 0.5", "10 ** 10 ** 10", "n + 1", "n", "a ? 1 : 2", "a % 2", "[a][1]", "max([])", "5 % 0"),
    *("sum(1..100000)", "count([a])", "count(a)", "float(first([]))", "max(n, 1)", "a && true ? 1 : 2"),
)


@pytest.mark.parametrize("text", WITHOUT_VALUE)
def test_formulas_without_a_value_are_metric_errors(text: str) -> None:
    with pytest.raises(FormulaError):
        parse_formula(text).value({"a": 1.0, "n": None})


@example("..")
@given(st.text("ab+-*/()<>?:,. 12&|![]{}#=", max_size=30))
def test_any_text_is_a_formula_or_an_error(text: str) -> None:
    try:
        formula = parse_formula(text)
    except ConfigError:
        return
    with suppress(FormulaError):
        formula.value(dict.fromkeys(formula.names, 1.0))
