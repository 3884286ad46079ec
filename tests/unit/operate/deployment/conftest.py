from collections.abc import Iterator

import pytest

from tests.deploy_files import CHART
from tests.support.helm_process import HelmChart


@pytest.fixture(scope="session")
def chart() -> Iterator[HelmChart]:
    with HelmChart(CHART) as loaded:
        yield loaded
