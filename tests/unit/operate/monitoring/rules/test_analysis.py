"""Rules that can never fire are found, with the reason, and sound rules are not reported."""

import pytest

from conch.base.yaml_documents import dump_documents, load_documents
from conch.domain.metrics.catalog import all_metrics
from conch.operate.monitoring.rules.analysis import AnalysedRule, analyse_rules
from conch.operate.monitoring.rules.known_metrics import MetricTable
from conch.operate.monitoring.rules.rule import rule_file
from conch.operate.monitoring.rules.shipped_alerts import rule_groups
from conch.operate.monitoring.rules.thresholds import Thresholds
from conch.operate.monitoring.rules.user_rules import read_rules

# An alert from an article about QPS limits: the annotation's number becomes the model's name.
QPS_ARTICLE = """
- record: triton:my_qps_threshold:1m
  expr: |
    sum by (model, version) (rate(my_qps_threshold_total[1m]) > 0) or on() vector(0)
- alert: TritonModelQpsOverflow
  expr: |
    triton:my_qps_threshold:1m
      > on(model) group_left(max_qps)
    label_replace(
      kube_annotations{annotation_max_qps!=""},
      "model", "$1", "annotation_max_qps", "(.+)"
    )
  for: 30s
  labels:
    severity: critical
"""


def analyse(text: str) -> list[AnalysedRule]:
    rules = [rule for document in load_documents(text) for rule in read_rules(document)]
    return analyse_rules(rules, MetricTable(all_metrics()))


def problems(expr: str, rest: str = "") -> list[tuple[str, str]]:
    [analysed] = analyse(dump_documents([[{"alert": "A", "expr": expr}]]).rstrip() + rest)
    return [(problem.verdict, problem.code) for problem in analysed.problems]


def test_the_alert_of_the_article_never_fires() -> None:
    _, alert = analyse(QPS_ARTICLE)
    reasons = {problem.code: problem.message for problem in alert.problems if problem.verdict == "never"}
    assert "sets 'model' to the value of 'annotation_max_qps', a number" in reasons["label-replace"]
    assert "kube_deployment_annotations" in reasons["unknown-metric"]
    assert ("wrong", "info-metric") in [(problem.verdict, problem.code) for problem in alert.problems]


def test_problems_have_a_place() -> None:
    _, alert = analyse(QPS_ARTICLE)
    place = next(problem.offset for problem in alert.problems if problem.code == "label-replace")
    assert alert.rule.expr[place:].startswith("label_replace(")
    assert QPS_ARTICLE.splitlines()[alert.rule.line - 1].strip() == "triton:my_qps_threshold:1m"


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        ("nv_inference_request_success > 1000", ("wrong", "raw-counter")),
        ("sum by (model) (nv_inference_request_success) > 1000", ("wrong", "raw-counter")),
        ("rate(nv_inference_pending_request_count[1m]) > 5", ("wrong", "rate-of-gauge")),
        ("nv_inference_request_sucess > 1", ("never", "unknown-metric")),
        ("vllm:gpu_cache_usage_perc > 0.9", ("doubtful", "unknown-metric")),
        ("conch_queue_dept > 1", ("never", "unknown-metric")),
        ('conch_queue_depth{modes="m"} > 1', ("never", "unknown-label")),
        ('conch_queue_depth{tenant="m"} > 1', ("never", "unknown-label")),
        ('conch_queue_depth{team="m"} > 1', ("doubtful", "unknown-label")),
        ('conch_queue_depth{model="a", model=~"b|c"} > 1', ("never", "contradiction")),
        ("conch_accelerator_utilization_ratio > 30", ("never", "impossible-threshold")),
        ("avg by (uuid) (conch_accelerator_utilization_ratio) * 100 > 100", ("never", "impossible-threshold")),
        ("conch_accelerator_temperature_celsius > 8500", ("never", "impossible-threshold")),
        ("DCGM_FI_DEV_GPU_TEMP > 850", ("never", "impossible-threshold")),
        ('nv_inference_request_failure{reason="TIMEOUT"} > 1', ("never", "unknown-value")),
        ('nv_inference_request_failure{reason=~"TIME.*|FULL"} > 1', ("never", "unknown-value")),
        ('conch_limit_exceeded_total{enforced="yes"} > 1', ("never", "unknown-value")),
        ("up < 0", ("never", "impossible-threshold")),
        ("conch_queue_depth < 0", ("never", "impossible-threshold")),
        ("conch_request_duration_seconds > 1", ("never", "histogram-name")),
        (
            "histogram_quantile(0.99, sum by (model) (rate(conch_request_duration_seconds_bucket[5m]))) > 1",
            ("never", "no-buckets"),
        ),
        (
            "histogram_quantile(99, sum by (le) (rate(conch_request_duration_seconds_bucket[5m]))) > 1",
            ("wrong", "quantile"),
        ),
        ("sum(conch_queue_depth) > on (model) conch_instances", ("never", "label-mismatch")),
        ("sum by (model) (conch_queue_depth) > conch_instances", ("never", "label-mismatch")),
        (
            "rate(nv_inference_request_failure[5m]) / rate(nv_inference_request_success[5m]) > 0.1",
            ("never", "label-mismatch"),
        ),
        ("rate(nv_inference_request_success[10s]) > 1", ("never", "short-range")),
        ("conch_queue_depth > bool 5", ("wrong", "always-fires")),
        ("conch_queue_depth", ("wrong", "always-fires")),
        ("conch_request_rate >", ("never", "syntax")),
        ('label_replace(conch_queue_depth, "a", "$1", "b", "(.+)") > 1', ("wrong", "label-replace")),
        ("sum by (models) (conch_queue_depth) > 1", ("doubtful", "unknown-label")),
        ("absent(conch_modelready)", ("wrong", "unknown-metric")),
    ],
)
def test_a_mistake_is_found(expr: str, expected: tuple[str, str]) -> None:
    assert expected in problems(expr)


def test_an_unknown_metric_has_a_suggestion() -> None:
    [analysed] = analyse("- {alert: A, expr: nv_inference_request_sucess > 1}")
    assert "did you mean 'nv_inference_request_success'?" in analysed.problems[0].message


def test_a_hold_time_longer_than_the_range_is_found() -> None:
    expr = "increase(conch_process_restarts_total[5m]) > 0"
    assert ("doubtful", "for-too-long") in problems(expr, "\n  for: 10m\n")
    assert problems(expr, "\n  for: 1m\n") == []


def test_a_label_that_the_result_lacks_is_found_in_templates() -> None:
    text = "\n  annotations: {summary: 'model {{ $labels.model }}'}\n"  # the sum has no labels
    assert ("doubtful", "template-label") in problems("sum(conch_queue_depth) > 3", text)
    assert problems("conch_queue_depth > 3", text) == []


def test_a_part_that_is_never_true_does_not_condemn_the_whole() -> None:
    assert {verdict for verdict, _ in problems("conch_nothing > 1 or conch_queue_depth > 3")} == {"doubtful"}


def test_metrics_of_others_are_not_judged() -> None:
    [analysed] = analyse("- {alert: A, expr: node_load1 > 4}")
    assert analysed.problems == ()
    assert analysed.unchecked == ("node_load1",)


@pytest.mark.parametrize(
    "expr",
    [
        "nv_gpu_utilization >= 1",
        "conch_model_ready == 0",
        "conch_queue_depth > on (model, version) group_left () conch_instances",
        "sum by (model) (rate(nv_inference_request_success[1m])) > 10 and sum by (model) (conch_queue_depth) > 1",
        "nv_inference_request_success - nv_inference_request_success offset 5m > 10",
        'up{job="conch"} == 0',
        'absent(up{job="conch"})',
        "conch_accelerator_temperature_celsius > 80",
        'DCGM_FI_DEV_GPU_UTIL{Hostname="a"} < 30',
    ],
)
def test_sound_conditions_are_not_reported(expr: str) -> None:
    assert problems(expr, "\n  for: 1m\n") == []


def test_the_rules_of_this_project_have_no_problems() -> None:
    document = rule_file(rule_groups(Thresholds()))
    mistakes = {
        (analysed.rule.name, problem.code, problem.message)
        for analysed in analyse(dump_documents([document]))
        for problem in analysed.problems
    }
    assert mistakes == set()
