"""Helm and Python refuse the same values; the messages name the place, and what is allowed there."""

from typing import Any

import pytest

from conch.base.errors import ConfigError
from conch.operate.deployment.values.read import read_values
from tests.support.helm_process import HelmChart, HelmError
from tests.unit.operate.deployment.refused_values import INVALID, REFUSED


@pytest.mark.parametrize(("values", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_contradictions_are_refused_with_the_same_text(chart: HelmChart, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as python:
        read_values(values)
    assert message in str(python.value)
    with pytest.raises(HelmError) as helm:
        chart.objects(values)
    assert str(python.value) in str(helm.value)


@pytest.mark.parametrize(("values", "message", "place"), INVALID, ids=[place for *_, place in INVALID])
def test_invalid_values_are_refused_with_their_place(
    chart: HelmChart, values: dict[str, Any], message: str, place: str
) -> None:
    with pytest.raises(ConfigError) as python:
        read_values(values)
    assert message in str(python.value)
    with pytest.raises(HelmError) as helm:
        chart.objects(values)
    assert place in str(helm.value)


def test_older_clusters_are_refused(chart: HelmChart) -> None:
    with pytest.raises(HelmError, match=r"kubernetesVersion 1\.99 is newer than the cluster; set it to 1\.\d+"):
        chart.objects({"kubernetesVersion": "1.99"})


def test_names_of_releases_that_no_service_can_have_are_refused(chart: HelmChart) -> None:
    with pytest.raises(HelmError, match="'7b' is not a valid release name; use at most 53 lower-case letters"):
        chart.objects({}, "7b")


def test_budgets_that_let_nodes_drain() -> None:
    half = {"minAvailable": "50%", "maxUnavailable": ""}
    read_values({"disruptionBudget": half, "replicaCount": 2})
    read_values({"disruptionBudget": half, "autoscaling": {"type": "hpa", "minReplicas": 2}})
    read_values({"disruptionBudget": {"minAvailable": "1", "maxUnavailable": "", "enabled": False}})
    read_values({"disruptionBudget": {"minAvailable": "1", "maxUnavailable": ""}, "replicaCount": 0})
