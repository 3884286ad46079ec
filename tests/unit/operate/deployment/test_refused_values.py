"""The chart refuses values that contradict each other, and its schema invalid ones; the message names the place."""

from typing import Any

import pytest

from conch.operate.deployment.chart import explain
from tests.support.helm_process import HelmChart, HelmError, by_name
from tests.unit.operate.deployment.refused_values import INVALID, REFUSED


@pytest.mark.parametrize(("values", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_contradictions_are_refused(chart: HelmChart, values: dict[str, Any], message: str) -> None:
    with pytest.raises(HelmError) as refused:
        chart.objects(values)
    explained = explain(str(refused.value))
    assert explained.startswith("values: ")
    assert message in explained


@pytest.mark.parametrize(("values", "message", "place"), INVALID, ids=[place for *_, place in INVALID])
def test_invalid_values_are_refused_with_their_place(
    chart: HelmChart, values: dict[str, Any], message: str, place: str
) -> None:
    with pytest.raises(HelmError) as refused:
        chart.objects(values)
    assert place in str(refused.value)
    assert message in explain(str(refused.value))


def test_several_mistakes_are_named_at_once(chart: HelmChart) -> None:
    with pytest.raises(HelmError) as refused:
        chart.objects({"replicas": 2, "version": 3, "image": {"tag": 24, "pullPolicy": "Sometimes"}})
    unknown, *places = sorted(explain(str(refused.value)).splitlines(), reverse=True)
    assert "unknown key 'replicas'; did you mean 'replicaCount'?" in unknown
    assert "unknown key 'version'" in unknown
    assert [place.partition(": ")[2].partition(":")[0] for place in places] == ["image.tag", "image.pullPolicy"]


def test_keys_with_slashes_are_named_as_they_are(chart: HelmChart) -> None:
    with pytest.raises(HelmError) as refused:
        chart.objects({"nodeSelector": {"kubernetes.io/role": True}})
    assert "values: nodeSelector.kubernetes.io/role: got boolean, want string" in explain(str(refused.value))


def test_other_messages_of_helm_stay() -> None:
    assert explain("cannot load values.yaml") == "cannot load values.yaml"


def test_older_clusters_are_refused(chart: HelmChart) -> None:
    with pytest.raises(HelmError, match=r"kubernetesVersion 1\.99 is newer than the cluster; set it to 1\.\d+"):
        chart.objects({"kubernetesVersion": "1.99"})


def test_names_of_releases_that_no_service_can_have_are_refused(chart: HelmChart) -> None:
    with pytest.raises(HelmError, match="'7b' is not a valid release name; use at most 53 lower-case letters"):
        chart.objects({}, "7b")


def test_budgets_that_let_nodes_drain(chart: HelmChart) -> None:
    half = {"minAvailable": "50%", "maxUnavailable": ""}
    chart.objects({"disruptionBudget": half, "replicaCount": 2})
    chart.objects({"disruptionBudget": half, "autoscaling": {"type": "hpa", "minReplicas": 2}})
    chart.objects({"disruptionBudget": {"minAvailable": "1", "maxUnavailable": "", "enabled": False}})
    chart.objects({"disruptionBudget": {"minAvailable": "1", "maxUnavailable": ""}, "replicaCount": 0})


def test_null_removes_a_default_of_a_mapping_that_kubernetes_defines(chart: HelmChart) -> None:
    objects = chart.objects({"podSecurityContext": {"runAsUser": None}})
    context = by_name(objects)["Deployment", "gpt2"]["spec"]["template"]["spec"]["securityContext"]
    assert "runAsUser" not in context
    assert context["runAsNonRoot"] is True
    with pytest.raises(HelmError, match=r"values: image\.tag: null is not valid; leave the key out for the default"):
        chart.objects({"image": {"tag": None}})
