"""The doctor names the link that is broken: each link of the chart's own objects is broken once."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from conch.base.errors import ConfigError
from conch.operate.deployment.chart import adapter_rules, release_objects
from conch.operate.scaling.diagnosis import ApiFacts, AutoscalerFacts, Link, LinkState, SeriesFacts, diagnose
from tests.support.helm_process import require_helm

RATIO = "triton:queue_compute:ratio"
SERIES = {RATIO: SeriesFacts([{"namespace": "default", "pod": "gpt2-5d9f7c8b6-a1b2c"}])}
VALUES = {RATIO: ApiFacts(1)}


@pytest.fixture(scope="module")
def rendered() -> list[dict[str, Any]]:
    """The objects of a release. Its autoscaler has one metric."""
    require_helm()
    autoscaling = {"type": "hpa", "metrics": [{"name": RATIO}]}
    return release_objects({"autoscaling": autoscaling, "monitoring": {"enabled": True}}, "gpt2")


@pytest.fixture
def chart(rendered: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Copies of the objects by kind."""
    return {document["kind"]: copy.deepcopy(document) for document in rendered}


def links_of(chart: dict[str, dict[str, Any]], **facts: Any) -> list[Link]:
    given = {"adapter_rules": adapter_rules(), "series": SERIES, "api": VALUES, **facts}
    autoscaler = chart["HorizontalPodAutoscaler"]
    return diagnose(
        AutoscalerFacts(autoscaler, [document for document in chart.values() if document is not autoscaler], **given)
    )


def broken(links: list[Link]) -> list[tuple[str, str]]:
    return [(link.stage, link.text) for link in links if link.state is LinkState.BROKEN]


def test_the_objects_of_the_chart_are_whole(chart: dict[str, dict[str, Any]]) -> None:
    links = links_of(chart)
    assert broken(links) == []
    assert {link.state for link in links} == {LinkState.OK}


def test_what_was_not_given_is_unknown(chart: dict[str, dict[str, Any]]) -> None:
    autoscaler = chart["HorizontalPodAutoscaler"]
    links = diagnose(AutoscalerFacts(autoscaler))
    assert {link.state for link in links} == {LinkState.UNKNOWN}


def _metric(chart: dict[str, Any], name: str) -> None:
    chart["HorizontalPodAutoscaler"]["spec"]["metrics"][0]["pods"]["metric"]["name"] = name


def _unlabelled(chart: dict[str, Any]) -> None:
    chart["PodMonitor"]["spec"]["selector"]["matchLabels"] = {"app": "other"}


def _port(chart: dict[str, Any]) -> None:
    chart["PodMonitor"]["spec"]["podMetricsEndpoints"][0]["port"] = "prometheus"


def _rule(chart: dict[str, Any]) -> None:
    chart["PrometheusRule"]["spec"]["groups"] = []


def _target(chart: dict[str, Any]) -> None:
    chart["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["name"] = "gtp2"


def _twice(chart: dict[str, Any]) -> None:
    metadata = {"name": "gpt2"}
    chart["ScaledObject"] = {
        "kind": "ScaledObject",
        "metadata": metadata,
        "spec": {"scaleTargetRef": {"name": "gpt2"}},
    }


def _status(chart: dict[str, Any]) -> None:
    condition = {"type": "ScalingActive", "status": "False", "reason": "FailedGetPodsMetric", "message": "…"}
    chart["HorizontalPodAutoscaler"]["status"] = {"conditions": [condition]}


@pytest.mark.parametrize(
    ("change", "stage", "text"),
    [
        (_target, "target", "Deployment 'gtp2' does not exist"),
        (_twice, "target", "and ScaledObject 'gpt2' scale Deployment 'gpt2'"),
        (_unlabelled, "scrape", "PodMonitor 'gpt2' selects app=other, but Deployment 'gpt2' has"),
        (_port, "scrape", "PodMonitor 'gpt2' scrapes port 'prometheus'; Deployment 'gpt2' names"),
        (_rule, "recording rule", f"no rule of the files records '{RATIO}'"),
        (_status, "status ScalingActive", "custom.metrics.k8s.io has no values"),
        (lambda chart: _metric(chart, "nv_inference_request_success"), "metric", "a counter, which never falls"),
        (lambda chart: _metric(chart, "nv_inference_queue_duration"), "metric", "no metric is named"),
    ],
)
def test_a_broken_link_is_named(
    change: Callable[[dict[str, Any]], None], stage: str, text: str, chart: dict[str, dict[str, Any]]
) -> None:
    change(chart)
    links = links_of(chart)
    first = broken(links)[0]
    assert first[0] == stage
    assert text in first[1]
    assert all(link.remedy for link in links if link.state is LinkState.BROKEN)


@pytest.mark.parametrize(
    ("facts", "stage", "text"),
    [
        ({"series": {RATIO: SeriesFacts()}}, "Prometheus", "has no series of it now"),
        ({"series": {RATIO: SeriesFacts([{"model": "m"}])}}, "Prometheus", "without the label namespace and pod"),
        ({"series": {RATIO: SeriesFacts(error="refused")}}, "Prometheus", "does not answer: refused"),
        (
            {"series": {RATIO: SeriesFacts([{"namespace": "default", "pod": "gpt2-b-5d9f7c8b6-a1b2c"}])}},
            "Prometheus",
            "1 series, none of them of a pod of Deployment 'gpt2', but of gpt2-b-5d9f7c8b6-a1b2c",
        ),
        (
            {"ready_pods": frozenset({"gpt2-5d9f7c8b6-a1b2c", "gpt2-5d9f7c8b6-d4e5f"})},
            "Prometheus",
            "1 series of 1 of 2 ready pods; none of gpt2-5d9f7c8b6-d4e5f",
        ),
        ({"adapter_rules": []}, "adapter", "no rule serves it"),
        ({"adapter_rules": [{"seriesQuery": RATIO}]}, "adapter", "does not map labels to namespace and pod"),
        ({"api": {RATIO: ApiFacts()}}, "custom.metrics.k8s.io", "has no value of a pod"),
        ({"api": {RATIO: ApiFacts(error="status 404")}}, "custom.metrics.k8s.io", "status 404"),
    ],
)
def test_an_answer_that_breaks_the_way_is_named(
    facts: dict[str, Any], stage: str, text: str, chart: dict[str, dict[str, Any]]
) -> None:
    ((found_stage, found_text),) = broken(links_of(chart, **facts))
    assert found_stage == stage
    assert text in found_text


def test_a_counter_is_explained_with_the_numbers_of_the_autoscaler() -> None:
    """S3's autoscaler: 1000 successful requests per pod, 2 to 10 replicas."""
    metric = {
        "type": "Pods",
        "pods": {
            "metric": {"name": "nv_inference_request_success"},
            "target": {"type": "AverageValue", "averageValue": 1000},
        },
    }
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "triton"}
    autoscaler = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "triton-hpa"},
        "spec": {"scaleTargetRef": target, "minReplicas": 2, "maxReplicas": 10, "metrics": [metric]},
    }
    (link,) = [
        found_link for found_link in diagnose(AutoscalerFacts(autoscaler)) if found_link.state is LinkState.BROKEN
    ]
    assert "counted 10,000, after 100 s at 100/s, it is at maxReplicas (10)" in link.text


def test_utilization_without_a_request_is_named(chart: dict[str, dict[str, Any]]) -> None:
    resource = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}
    chart["HorizontalPodAutoscaler"]["spec"]["metrics"] = [{"type": "Resource", "resource": resource}]
    container = chart["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    container["resources"] = {}
    assert broken(links_of(chart))[0][0] == "request"
    container["resources"] = {"limits": {"cpu": 2}}  # requests are those of the limits then
    assert broken(links_of(chart)) == []
    # <unknown>/80% with requests: nothing serves metrics.k8s.io.
    ((stage, _),) = broken(links_of(chart, api={"cpu": ApiFacts(error="status 404")}))
    assert stage == "metrics.k8s.io"


def test_an_invalid_autoscaler_is_refused() -> None:
    with pytest.raises(ConfigError, match="spec"):
        diagnose(AutoscalerFacts({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler"}))
