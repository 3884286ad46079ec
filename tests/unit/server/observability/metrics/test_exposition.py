"""The text for Prometheus, read back by the parser of Prometheus' own client library."""

import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from conch.domain.exposition import Buckets, Family, Point, Quantiles, render


def test_a_counter_keeps_its_name_and_counts_are_integral() -> None:
    family = Family(
        "nv_inference_count", "counter", "What for.", [Point(1234567890123, {"version": "1", "model": "m"})]
    )
    assert render([family]) == (
        b"# HELP nv_inference_count What for.\n"
        b"# TYPE nv_inference_count counter\n"
        b'nv_inference_count{model="m",version="1"} 1234567890123\n'
    )


def test_a_family_without_points_is_left_out() -> None:
    assert render([Family("a", "gauge", "b", [])]) == b""


@pytest.mark.parametrize("label", ['quote "', "back\\slash", "new\nline", "grüße", "{}=,", ""])
def test_any_text_survives_as_a_label(label: str) -> None:
    text = render([Family("a", "gauge", "b", [Point(1, {"l": label})])]).decode()
    (family,) = text_string_to_metric_families(text)
    assert family.samples[0].labels == {"l": label}


def test_help_stays_on_its_line() -> None:
    (family,) = text_string_to_metric_families(render([Family("a", "gauge", "one\ntwo \\", [Point(1)])]).decode())
    assert family.documentation == "one\ntwo \\"


@pytest.mark.parametrize(
    ("value", "text"),
    [(3, "3"), (3.0, "3"), (0.25, "0.25"), (True, "1"), (math.inf, "+Inf"), (-math.inf, "-Inf"), (1e300, "1e+300")],
)
def test_values_are_written_as_short_as_they_are(value: float, text: str) -> None:
    assert render([Family("a", "gauge", "b", [Point(value)])]).decode().splitlines()[-1] == f"a {text}"


def test_nan_and_infinities() -> None:
    (family,) = text_string_to_metric_families(render([Family("a", "gauge", "b", [Point(math.nan)])]).decode())
    assert math.isnan(family.samples[0].value)


def test_a_histogram_has_buckets_sum_and_count() -> None:
    point = Point(Buckets((0.5, 100.0, math.inf), (1, 3, 4), 812.5), {"model": "m", "zone": "z"})
    assert render([Family("h", "histogram", "b", [point])]).decode().splitlines()[2:] == [
        'h_bucket{model="m",zone="z",le="0.5"} 1',
        'h_bucket{model="m",zone="z",le="100"} 3',
        'h_bucket{model="m",zone="z",le="+Inf"} 4',
        'h_sum{model="m",zone="z"} 812.5',
        'h_count{model="m",zone="z"} 4',
    ]


def test_a_histogram_and_a_summary_without_labels() -> None:
    text = render(
        [
            Family("h", "histogram", "b", [Point(Buckets((math.inf,), (4,), 2))]),
            Family("s", "summary", "b", [Point(Quantiles([(0.5, 1.5)], 3, 2))]),
        ]
    )
    samples = [sample for family in text_string_to_metric_families(text.decode()) for sample in family.samples]
    assert [(sample.name, sample.labels, sample.value) for sample in samples] == [
        ("h_bucket", {"le": "+Inf"}, 4),
        ("h_sum", {}, 2),
        ("h_count", {}, 4),
        ("s", {"quantile": "0.5"}, 1.5),
        ("s_sum", {}, 3),
        ("s_count", {}, 2),
    ]
