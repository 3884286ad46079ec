"""OpenMetrics, read back by the parser of Prometheus' client library; and when it is chosen."""

import math

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from conch.domain.exposition import Buckets, Exemplar, Family, Point, Quantiles
from conch.domain.openmetrics import is_preferred, openmetrics_pieces


def read(*families: Family) -> dict[str, object]:
    text = b"".join(openmetrics_pieces(families)).decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


@pytest.mark.parametrize(
    ("name", "kind", "family_name", "shown"),
    [
        ("conch_a_total", "counter", "conch_a", "counter"),
        ("nv_inference_count", "counter", "nv_inference_count", "unknown"),
        ("conch_depth", "gauge", "conch_depth", "gauge"),
    ],
)
def test_sample_names_are_those_of_the_other_format(name: str, kind: str, family_name: str, shown: str) -> None:
    family = read(Family(name, kind, 'A "b" \\ \n.', [Point(3, {"model": 'm"'})]))[family_name]
    assert (family.type, family.documentation) == (shown, 'A "b" \\ \n.')
    (sample,) = family.samples
    assert (sample.name, sample.labels, sample.value) == (name, {"model": 'm"'}, 3)


def test_a_histogram_has_exemplars() -> None:
    exemplars = {1: Exemplar("0af7651916cd43dd8448eb211c80319c", 0.75, 1520879607.789)}
    value = Buckets((0.5, 1.0, math.inf), (1, 3, 4), 812.5, exemplars)
    family = read(Family("h", "histogram", "b", [Point(value, {"m": "x"}), Point(value)]))["h"]
    buckets = [sample for sample in family.samples if sample.name == "h_bucket"]
    assert [sample.labels["le"] for sample in buckets] == ["0.5", "1.0", "+Inf"] * 2
    assert [sample.exemplar is not None for sample in buckets] == [False, True, False] * 2
    assert buckets[1].exemplar.labels == {"trace_id": "0af7651916cd43dd8448eb211c80319c"}
    assert (buckets[1].exemplar.value, float(buckets[1].exemplar.timestamp)) == (0.75, 1520879607.789)


def test_a_summary() -> None:
    family = read(Family("s", "summary", "b", [Point(Quantiles([(0.5, 1.5), (0.99, math.nan)], 3, 2))]))["s"]
    assert [(sample.name, sample.labels) for sample in family.samples] == [
        ("s", {"quantile": "0.5"}),
        ("s", {"quantile": "0.99"}),
        ("s_sum", {}),
        ("s_count", {}),
    ]


PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
    "application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,"
    "text/plain;version=0.0.4;q=0.2,/;q=0.1"
)


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        (PROMETHEUS_2, True),
        (PROMETHEUS_3, True),
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        ("text/plain, application/openmetrics-text;q=0.5", False),
        ("application/openmetrics-text", True),
        ('application/openmetrics-text; version="1.0.0"', True),
        ("application/openmetrics-text; version=2.0.0", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=x,;=,", False),
    ],
)
def test_it_is_sent_to_those_that_prefer_it(accept: str, chosen: bool) -> None:
    assert is_preferred(accept) == chosen
