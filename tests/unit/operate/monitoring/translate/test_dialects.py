"""The table of correspondences agrees with the metric catalogue."""

import pytest

from conch.domain.metrics.catalog import all_metrics, dcgm_fields
from conch.operate.monitoring.translate.dialects import correspondences, counterparts


def test_factors_of_dcgm_are_those_of_the_exporter() -> None:
    for field in dcgm_fields():
        [counterpart] = counterparts(field.current.name, "dcgm-4.7", "dcgm-legacy")
        assert counterpart.name == field.legacy.name
        assert float(counterpart.factor) == pytest.approx(field.legacy_factor)


def test_names_that_the_server_exposes_are_in_the_catalogue() -> None:
    for row in correspondences():
        for dialect in ("conch", "triton"):
            if dialect in row.names:
                name = row.names[dialect].name
                metric = all_metrics().get(name) or all_metrics()[name.removesuffix("_sum").removesuffix("_count")]
                assert metric.unit == row.names[dialect].unit or name.endswith("_count")
                assert metric.kind == row.kind or metric.kind == "histogram"
