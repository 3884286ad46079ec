"""Words of the command line as a scenario."""

from argparse import Namespace
from dataclasses import replace
from math import ceil, inf
from pathlib import Path

import numpy as np

from conch.base.command_line.files import read_text
from conch.base.durations import parse_duration
from conch.base.errors import ConfigError
from conch.domain.arrivals import parse_burst, parse_ramp, steady
from conch.domain.load_traces import TraceError
from conch.operate.scaling.hpa.spec import HpaSettings
from conch.operate.scaling.simulation.queries import MetricDelays
from conch.operate.scaling.simulation.scenario import ColdStart, Fault, FaultKind, Scenario
from conch.operate.scaling.simulation.service import ServiceModel, constant_service, language_model
from conch.operate.scaling.traffic import TrafficCurve, diurnal, from_counts, from_curve, from_times

_TIMED_FAULTS = (FaultKind.PROMETHEUS_DOWN, FaultKind.METRIC_MISSING)
_HEADROOM = 0.7  # the utilization at which the first replicas start
_MAX_DURATION_S = 31 * 86400


def read_scenario(given: Namespace) -> Scenario:
    """Return the scenario of the arguments. Raises ConfigError and ValueError."""
    if not 1 <= given.duration <= _MAX_DURATION_S:
        raise ConfigError(f"--duration: expected 1 s to 31 days, got {given.duration:,.10g} s")
    service = _service(given)
    traffic = _traffic(given)
    if not 0 < traffic.duration_s <= _MAX_DURATION_S:
        raise ConfigError(f"--traffic: expected at most 31 days, got {traffic.duration_s / 86400:.1f}")
    faults = tuple(_fault(each) for each in given.fault)
    for fault in faults:
        if fault.at_s >= traffic.duration_s:
            raise ConfigError(
                f"--fault: {fault.kind.value} begins at {fault.at_s:,} s, after the load, which lasts"
                f" {traffic.duration_s:,} s"
            )
    slo = {"latency": given.slo.get("latency"), "ttft": given.slo.get("ttft")}
    if (slo["latency"] is None) is (slo["ttft"] is None):
        raise ConfigError("--slo: expected one target, latency:200ms or ttft:1s")
    if slo["ttft"] is not None and given.llm is None:
        raise ConfigError("--slo ttft needs --llm")
    first = needed_replicas(float(traffic.rates[0]), service)
    return Scenario(
        traffic,
        service,
        ColdStart(pull_s=int(given.image_pull), load_s=ceil(given.cold_start)),
        slo_s=slo["latency"] or slo["ttft"] or 0.0,
        slo_is_first_token=slo["ttft"] is not None,
        objective=given.objective,
        initial_replicas=first if given.initial_replicas is None else given.initial_replicas,
        max_queue=inf if given.max_queue is None else given.max_queue,
        timing=MetricDelays(
            max(int(given.scrape_interval), 1), max(int(given.rule_interval), 1), int(given.adapter_lag)
        ),
        settings=HpaSettings(sync_period_s=max(int(given.sync_period), 1)),
        faults=faults,
    )


def needed_replicas(rate: float, service: ServiceModel) -> int:
    """Return the replicas that serve a rate with some headroom."""
    return max(ceil(rate / (service.capacity * _HEADROOM)), 1)


def _traffic(given: Namespace) -> TrafficCurve:
    kind, _, rest = given.traffic.partition(":")
    seconds = int(given.duration)
    if kind == "counts":
        interval, _, path = rest.partition(":")
        return from_counts(_numbers(path), int(parse_duration(interval)), Path(path).name, given.scale)
    if kind in {"steady", "diurnal", "burst", "ramp"}:
        synthetic = _synthetic(kind, rest, seconds)
        scaled = TrafficCurve(synthetic.name, synthetic.rates * given.scale)
        return scaled.with_noise(given.noise, given.seed)
    from conch.domain.load_traces import read_trace

    try:
        trace = read_trace(given.traffic)
    except TraceError as error:
        known = "steady, diurnal, burst, ramp, counts"
        raise ConfigError(f"--traffic: {error}; expected {known}, or a file of a recorded load") from None
    return from_times(trace.times_s, trace.name, given.scale)


def _synthetic(kind: str, rest: str, seconds: int) -> TrafficCurve:
    if kind == "steady":
        return from_curve(steady(_rate(rest)), seconds, f"{rest} requests/s")
    if kind == "burst":
        return from_curve(parse_burst(rest), seconds, f"bursts {rest}")
    if kind == "ramp":
        return from_curve(parse_ramp(rest, seconds), seconds, f"ramp {rest}")
    parts = rest.split(":")
    if len(parts) not in {2, 3}:
        raise ConfigError(
            f"--traffic: 'diurnal:{rest}' is not valid; expected diurnal:LOW:HIGH or diurnal:LOW:HIGH:HOUR"
        )
    return diurnal(_rate(parts[0]), _rate(parts[1]), float(parts[2]) if len(parts) == 3 else 20.0, seconds)


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1e9:
        raise ConfigError(f"--traffic: '{text}' is not a rate; expected requests per second, such as 200")
    return value


def _numbers(path: str) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Return the numbers of a file, one a line: the last column, so that a time may stand before."""
    found = []
    for number, line in enumerate(read_text(Path(path)).splitlines(), 1):
        cell = line.replace(",", " ").split()[-1:] or [""]
        if not cell[0] or line.startswith("#"):
            continue
        try:
            found.append(float(cell[0]))
        except ValueError:
            if number > 1:  # the first line may name columns
                raise ConfigError(f"{path}:{number}: '{cell[0]}' is not a number of requests") from None
    return np.array(found)


def _service(given: Namespace) -> ServiceModel:
    if given.llm is not None and given.service_time is not None:
        raise ConfigError("--service-time and --llm exclude each other; give one of them")
    if given.llm is not None:
        prompt, output = given.llm
        return language_model(prompt, output, given.prefill_rate, given.decode_rate, given.slots, given.kv_tokens)
    if given.service_time is None:
        raise ConfigError("--service-time or --llm is required")
    if given.service_time.endswith((".json", ".html")):
        return _from_report(Path(given.service_time), given.instances)
    seconds = parse_duration(given.service_time)
    if seconds <= 0:
        raise ConfigError(f"--service-time: expected a time above 0, such as 20ms, got {given.service_time}")
    base = constant_service(seconds, given.instances or 1, given.variation)
    max_batch, batch_cost = _batch(given.batch)
    return replace(base, max_batch=max_batch, batch_cost=batch_cost)


def _batch(text: str) -> tuple[int, float]:
    size, _, cost = text.partition(":")
    try:
        max_batch, batch_cost = int(size), float(cost or 1)
    except ValueError:
        max_batch, batch_cost = 0, 0.0
    if max_batch < 1 or not 0 <= batch_cost <= 1:
        raise ConfigError(f"--batch: '{text}' is not valid; expected SIZE or SIZE:COST, such as 8:0.3")
    return max_batch, batch_cost


def _from_report(path: Path, instances: int | None) -> ServiceModel:
    """Return the times of the lowest load of a report, and as many instances as its highest throughput needs."""
    from conch.measure.bench.report.certificate_file import read_certificate

    measured = read_certificate(path).measurements
    levels = [(each.throughput.value, each.service_latency or each.latency) for each in measured]
    answered = sorted(((rate, times) for rate, times in levels if times is not None), key=lambda each: each[0])
    if not answered:
        raise ConfigError(f"{path}: no level with a successful request")
    _, lowest = answered[0]
    edges, counts = zip(*lowest.histogram, strict=True)
    service = ServiceModel(np.array(edges), shares=np.array(counts, np.float64))
    return replace(service, servers=instances or max(round(answered[-1][0] * service.mean_s), 1))


def _fault(text: str) -> Fault:
    kind_text, _, rest = text.partition(":")
    kinds = [each.value for each in FaultKind]
    if kind_text not in kinds:
        raise ConfigError(f"--fault: '{kind_text}' is not a fault; expected one of {', '.join(kinds)}")
    kind, (at, _, more) = FaultKind(kind_text), rest.partition(":")
    if kind in _TIMED_FAULTS:
        if not more:
            raise ConfigError(f"--fault: '{text}' needs a time; expected {kind_text}:3h:10m")
        return Fault(kind, int(parse_duration(at)), int(parse_duration(more)))
    if more and not more.isdecimal():
        raise ConfigError(f"--fault: '{more}' is not a number of replicas; expected {kind_text}:3h:2")
    return Fault(kind, int(parse_duration(at)), count=int(more or 1))
