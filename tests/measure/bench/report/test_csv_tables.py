"""CSV: the columns of perf_analyzer, and a long form."""

import csv
from dataclasses import replace

from conch.measure.bench.measurement import BATCH_SIZE, Estimate, Level, ResponseFigures
from conch.measure.bench.report.csv_tables import long_csv, perf_analyzer_csv
from tests.measure.bench.report.samples import certificate, hostile_certificate

# As perf_analyzer of tritonclient 2.47.0 wrote it with -f: a concurrency; a rate of a decoupled model; --percentile=85.
RECORDED = (
    "Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,Server Compute Input,"
    "Server Compute Infer,Server Compute Output,Client Recv,p50 latency,p90 latency,p95 latency,p99 latency"
)
RECORDED_RATE = RECORDED.replace(
    "Concurrency,Inferences/Second,", "Request Rate,Inferences/Second,Response Throughput,"
)
RECORDED_PERCENTILE = RECORDED.replace("p50 latency,p90", "p50 latency,p85 latency,p90")


def test_the_columns_are_those_of_perf_analyzer() -> None:
    head, *rows = perf_analyzer_csv(certificate(1, 4)).splitlines()
    assert head == RECORDED
    assert [row.split(",")[0] for row in rows] == ["1", "4"]


def test_parts_add_up_to_the_mean_latency_in_microseconds() -> None:
    document = certificate(16)
    (row,) = csv.DictReader(perf_analyzer_csv(document).splitlines())
    parts = [int(value) for name, value in row.items() if "Client" in name or "Server" in name]
    latency = document.measurements[0].latency
    assert latency is not None
    assert abs(sum(parts) - latency.mean.value * 1e6) <= 5
    assert int(row["p99 latency"]) == round(latency.percentiles["99"].value * 1e6)


def test_without_the_servers_metrics_there_are_no_columns_of_the_server() -> None:
    usual = certificate(1)
    rate = replace(usual.measurements[0], server=None, level=Level("rate", 50, "50/s"))
    head, row = perf_analyzer_csv(replace(usual, measurements=(rate,))).splitlines()
    assert (
        head == "Request Rate,Inferences/Second,Client Send,Client Recv,p50 latency,p90 latency,p95 latency,p99 latency"
    )
    assert row.startswith("50,")


def test_the_columns_of_rates_responses_and_batches() -> None:
    usual = certificate(1)
    responses = ResponseFigures(300, Estimate(150.0), None, None)
    rate = replace(usual.measurements[0], level=Level("rate", 50, "50/s"), responses=responses)
    document = replace(usual, measurements=(rate,), settings={BATCH_SIZE: 4})
    head, row = perf_analyzer_csv(document).splitlines()
    assert head == RECORDED_RATE
    assert row.split(",")[:3] == ["50", f"{4 * rate.throughput.value:g}", "150"]


def test_percentiles_that_are_asked_for_are_columns() -> None:
    usual = certificate(1)
    latency = usual.measurements[0].latency
    assert latency is not None
    more = replace(latency, percentiles={**latency.percentiles, "85": Estimate(0.0123)})
    document = replace(usual, measurements=(replace(usual.measurements[0], latency=more),))
    head, row = perf_analyzer_csv(document).splitlines()
    assert head == RECORDED_PERCENTILE
    assert row.split(",")[10] == "12300"


def test_the_long_form_has_exact_values_and_intervals() -> None:
    document = certificate(1, 5, tokens=True)
    rows = list(csv.DictReader(long_csv(document).splitlines()))
    cells = next(row for row in rows if (row["level"], row["quantity"]) == ("5", "ttft_p99"))
    tokens = document.measurements[1].tokens
    assert tokens is not None
    assert tokens.first_token is not None
    expected = tokens.first_token.percentiles["99"]
    assert [float(cells[name]) for name in ("value", "low", "high")] == [expected.value, expected.low, expected.high]


def test_hostile_names_are_quoted() -> None:
    rows = list(csv.reader(long_csv(hostile_certificate()).splitlines()))
    assert {len(row) for row in rows} == {6}


def test_a_run_without_a_level_has_a_head() -> None:
    assert perf_analyzer_csv(certificate()).startswith("Concurrency,Inferences/Second,Client Send,Client Recv")
