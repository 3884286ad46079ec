"""Declared metrics over requests: values, bounds, and expressions that fail."""

import logging
from pathlib import Path
from textwrap import dedent

import pytest
from prometheus_client.parser import text_string_to_metric_families

from conch.base.errors import ConchError
from conch.domain.declared_metrics.declaration import read_declarations
from conch.domain.declared_metrics.request_facts import ModelIdentity
from conch.domain.declared_metrics.request_metrics import DeclaredMetrics, RequestMetrics
from conch.domain.exposition import render
from conch.domain.request import InferRequest, InferResponse
from conch.domain.tensor import Tensor


def declared(folder: Path, text: str) -> DeclaredMetrics:
    path = folder / "metrics.yaml"
    path.write_text("metrics:\n" + dedent(text))
    return DeclaredMetrics(read_declarations(path))


def scrape(metrics: DeclaredMetrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(render(metrics.families()).decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def request(**parameters: str | int) -> InferRequest:
    return InferRequest("m", [Tensor("IN", "INT8", (3,), b"abc")], parameters=dict(parameters))


def answer() -> InferResponse:
    return InferResponse("m", 1, [Tensor("OUT", "INT8", (2,), b"ab")])


def test_a_gauge_of_requests_in_flight_returns_to_zero(tmp_path: Path) -> None:
    metrics = declared(
        tmp_path,
        """
        - {name: in_flight, kind: gauge, help: Requests., in_flight: true, labels: {tier: 'parameter("tier", "")'}}
        - {name: in_flight_bytes, kind: gauge, help: Bytes., in_flight: true, expression: input_bytes}
        """,
    )
    model = RequestMetrics(metrics, ModelIdentity("m", "", 1))
    first, second = request(tier="gold"), request(tier="gold")
    model.begin(first)
    model.begin(second)
    assert scrape(metrics)["in_flight", (("tier", "gold"),)] == 2
    assert scrape(metrics)["in_flight_bytes", ()] == 6
    first.parameters["tier"] = "changed"  # its begin counts
    model.end(first, answer(), None)
    model.end(first, answer(), None)
    assert scrape(metrics)["in_flight", (("tier", "gold"),)] == 1
    model.end(second, ConchError("failed"), None)
    assert scrape(metrics)["in_flight", (("tier", "gold"),)] == 0
    assert scrape(metrics)["in_flight_bytes", ()] == 0


def test_counters_gauges_and_histograms(tmp_path: Path) -> None:
    metrics = declared(
        tmp_path,
        """
        - {name: failed_total, kind: counter, help: Failed., where: not success,
           labels: {reason: reason, version: version}}
        - {name: last_bytes, kind: gauge, help: Last., expression: output_bytes}
        - {name: size_bytes, kind: histogram, help: Sizes., buckets: [2, 4], expression: input_bytes}
        """,
    )
    model = RequestMetrics(metrics, ModelIdentity("m", "", 1))
    model.end(request(), answer(), None)
    model.end(request(), ConchError("failed"), None)
    model.end(request(), None, ConchError("failed"))
    values = scrape(metrics)
    assert values["failed_total", (("reason", "OTHER"), ("version", "1"))] == 2
    assert values["last_bytes", ()] == 0
    assert values["size_bytes_bucket", (("le", "2"),)] == 0
    assert values["size_bytes_bucket", (("le", "4"),)] == 3
    assert values["size_bytes_sum", ()] == 9
    assert values["size_bytes_count", ()] == 3


def test_ten_thousand_label_values_are_bounded_and_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = declared(
        tmp_path, """- {name: users_total, kind: counter, help: Users., labels: {user: 'parameter("user", "")'}}"""
    )
    model = RequestMetrics(metrics, ModelIdentity("m", "", 1))
    with caplog.at_level(logging.WARNING):
        for number in range(10_000):
            model.end(request(user=number), answer(), None)
    values = scrape(metrics)
    assert sum(name == "users_total" for name, _ in values) == 1000
    assert values["conch_custom_metric_overflows_total", (("family", "users_total"),)] == 9000
    assert [record.getMessage() for record in caplog.records if "max_series" in record.getMessage()] == [
        'custom metric "users_total" has reached max_series (1000): requests with further labels are omitted'
    ]
    assert max(len(value) for _, labels in values for _, value in labels) <= 256


def test_a_long_label_is_cut(tmp_path: Path) -> None:
    metrics = declared(tmp_path, '- {name: a_total, kind: counter, help: A., labels: {x: \'parameter("x", "")\'}}')
    RequestMetrics(metrics, ModelIdentity("m", "", 1)).end(request(x="y" * 10_000), answer(), None)
    assert ("a_total", (("x", "y" * 256),)) in scrape(metrics)


@pytest.mark.parametrize("expression", ["1 / (batch_size - 1)", "-1", "1e308 * 10 * input_bytes"])
def test_an_expression_that_fails_costs_only_its_metric(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, expression: str
) -> None:
    metrics = declared(
        tmp_path,
        f"""
        - {{name: bad_total, kind: counter, help: Bad., expression: {expression}}}
        - {{name: good_total, kind: counter, help: Good.}}
        """,
    )
    model = RequestMetrics(metrics, ModelIdentity("m", "", 1))
    for _ in range(3):
        model.end(request(), answer(), None)
    values = scrape(metrics)
    assert values["good_total", ()] == 3
    assert ("bad_total", ()) not in values
    assert values["conch_custom_metric_errors_total", (("family", "bad_total"),)] == 3
    assert len(caplog.records) == 1
