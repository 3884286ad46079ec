"""The chart, rendered by Helm, creates the objects that `conch.operate.deployment` makes."""

from typing import Any

import pytest

from conch import __version__
from conch.operate.deployment.kubernetes.objects import objects
from conch.operate.deployment.kubernetes.release import Release
from conch.operate.deployment.values.read import read_values
from tests import deploy_files
from tests.support.helm_process import HelmChart, by_name, differences
from tests.unit.operate.deployment.value_sets import value_sets

VALUE_SETS = value_sets()


def assert_equal(chart: HelmChart, values: dict[str, Any], name: str = "gpt2", namespace: str = "models") -> None:
    """Helm and Python make the same objects, field by field."""
    helm = by_name(chart.objects(values, name, namespace))
    python = by_name(objects(read_values(values), Release(name, namespace, __version__)))
    assert sorted(helm) == sorted(python)
    assert [each for key, made in python.items() for each in differences(helm[key], made, "/".join(key))] == []


def test_generated_files_are_up_to_date() -> None:
    assert [str(path) for path in deploy_files.outdated()] == [], "run: make deploy-files"


@pytest.mark.parametrize("values", VALUE_SETS.values(), ids=VALUE_SETS)
def test_helm_and_python_make_the_same_objects(chart: HelmChart, values: dict[str, Any]) -> None:
    assert_equal(chart, values)
