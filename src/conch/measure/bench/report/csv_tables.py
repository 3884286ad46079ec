"""CSV of two kinds: the columns of perf_analyzer's `-f`, and one line for each value."""

import csv
import io
from collections.abc import Iterator

from conch.measure.bench.measurement import BATCH_SIZE, Estimate, Measurement
from conch.measure.bench.report.certificate import Certificate
from conch.measure.bench.statistics.quantities import QUANTITIES

_SERVER_COLUMNS = {
    "Server Queue": "queue_s",
    "Server Compute Input": "compute_input_s",
    "Server Compute Infer": "compute_infer_s",
    "Server Compute Output": "compute_output_s",
}
_PERCENTILES = ("50", "90", "95", "99")
_LONG_COLUMNS = ("load", "level", "quantity", "value", "low", "high")


def perf_analyzer_csv(certificate: Certificate) -> str:
    """Return the table that perf_analyzer 2.47 writes with `-f`: times are mean microseconds, percentiles of latency.

    Inferences are requests times `--batch-size`. Rows are in the order of the levels; perf_analyzer sorts them by
    throughput. Response Throughput is of models that answer with several responses.

    The load generator does not time the writing and reading of sockets: Client Send and Client Recv are 0, and their
    time is in Network+Server Send/Recv. Without the server's metrics the server's columns are left out, as there.
    """
    usable = [level for level in certificate.measurements if level.latency is not None]
    has_server = bool(usable) and all(level.server and level.server.queue_s is not None for level in usable)
    first = "Request Rate" if any(level.level.kind in ("rate", "curve") for level in usable) else "Concurrency"
    has_responses = any(level.responses for level in usable)
    percentiles = sorted({name for level in usable if level.latency for name in level.latency.percentiles}, key=float)
    percentiles = [name for name in percentiles if name != "99.9"] or list(_PERCENTILES)
    batch = int(certificate.settings.get(BATCH_SIZE) or 1)
    server = ["Network+Server Send/Recv", *_SERVER_COLUMNS] if has_server else []
    responses = ["Response Throughput"] if has_responses else []
    head = [first, "Inferences/Second", *responses, "Client Send", *server, "Client Recv"]
    rows = [
        [
            f"{level.level.value:g}",
            f"{level.throughput.value * batch:g}",
            *([f"{level.responses.rate.value:g}" if level.responses else "0"] if has_responses else []),
            *_perf_analyzer_times(level, percentiles, has_server=has_server),
        ]
        for level in usable
    ]
    return _text([[*head, *(f"p{name} latency" for name in percentiles)], *rows])


def long_csv(certificate: Certificate) -> str:
    """Return level, quantity, value and interval in base units (seconds, per second), one line for each value."""
    return _text(
        [list(_LONG_COLUMNS), *(row for measurement in certificate.measurements for row in _long_rows(measurement))]
    )


def _perf_analyzer_times(measurement: Measurement, percentiles: list[str], *, has_server: bool) -> list[str]:
    latency = measurement.latency
    assert latency is not None
    cells = ["0"]
    if has_server:
        times = [getattr(measurement.server, field) or 0.0 for field in _SERVER_COLUMNS.values()]
        cells += [_us(max(latency.mean.value - sum(times), 0.0)), *map(_us, times)]
    return [*cells, "0", *(_us(latency.percentiles[name].value) for name in percentiles)]


def _long_rows(measurement: Measurement) -> Iterator[list[str]]:
    level = [measurement.level.kind, measurement.level.label]
    plain = {
        "requests": measurement.requests,
        "wall": measurement.window_s,
        "max": measurement.latency.max if measurement.latency else None,
        **{f"outcome_{name}": count for name, count in measurement.outcomes.items()},
    }
    values = {name: Estimate(value) for name, value in plain.items() if value is not None}
    values |= {
        name: measured for name, quantity in QUANTITIES.items() if (measured := quantity.read(measurement)) is not None
    }
    for name, estimate in values.items():
        numbers = (estimate.value, estimate.low, estimate.high)
        yield [*level, name, *("" if number is None else repr(number) for number in numbers)]


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.0f}"


def _text(rows: list[list[str]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()
