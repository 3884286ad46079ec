from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tools.deploy_files import CHART

from tests.support.helm_process import HelmChart, by_name


@pytest.fixture(scope="session")
def chart() -> Iterator[HelmChart]:
    with HelmChart(CHART) as loaded:
        yield loaded


@pytest.fixture(scope="session")
def of(chart: HelmChart) -> Callable[..., dict[str, Any]]:
    """The object of a kind and of a suffix of its name, which the chart creates for the release `gpt2` in `models`."""

    def document(values: dict[str, Any], kind: str, suffix: str = "") -> dict[str, Any]:
        return by_name(chart.objects(values, "gpt2", "models"))[kind, f"gpt2{suffix}"]

    return document
