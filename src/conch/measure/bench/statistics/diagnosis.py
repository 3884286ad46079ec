"""What makes a measurement doubtful: notes on client, machine, server and sample."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from conch.base.durations import duration_text
from conch.measure.bench.measurement import ClientHealth, Measurement, Note, TimeDistribution
from conch.measure.bench.records import RequestOutcome
from conch.measure.bench.statistics.modes import two_modes
from conch.measure.bench.statistics.quantities import errors_of
from conch.measure.bench.statistics.selection import RequestColumns
from conch.measure.bench.statistics.stalls import Stalls, find_stalls
from conch.measure.bench.statistics.steady_state import Steadiness, steadiness

MAX_CPU_RATIO = 0.9
# Lag is in the latency. The median of it adds to all requests, its tail less than itself to the tail of latency.
_MAX_LAG_SHARES = {"50": 0.1, "99": 0.25}
_MIN_LAG_S = 1e-3  # below it a client that is not busy lags too: a few microseconds of work, and being woken
_MIN_NOTED_LAG_S = 100e-6
_MIN_STEAL = 0.02
_MIN_THROTTLED = 0.01
_MIN_PRESSURE = 0.5  # a server on the same machine causes some
_MIN_PAUSE_SHARE = 0.5  # of P99
_SERIOUS_ERRORS = 0.01
_MIN_OUTAGE_S = 0.05
_MAX_RATE_SHORTFALL = 0.05


@dataclass(frozen=True, slots=True)
class Evidence:
    """What notes are made from. `span` is the window in seconds from the start of the run."""

    measured: Measurement
    columns: RequestColumns
    span: tuple[float, float]
    is_open_loop: bool
    is_load_steady: bool
    client: ClientHealth | None


def diagnose(evidence: Evidence) -> tuple[Note, ...]:
    """Return the notes on a measurement, the most severe first."""
    return by_severity(
        (
            *_client_notes(evidence),
            *_machine_notes(evidence),
            *_outcome_notes(evidence),
            *_time_notes(evidence),
            *_sample_notes(evidence.measured),
        )
    )


def by_severity(notes: Iterable[Note]) -> tuple[Note, ...]:
    """Return notes, the most severe first."""
    return tuple(sorted(notes, key=lambda note: ("invalid", "warning", "info").index(note.severity)))


def _client_notes(evidence: Evidence) -> Iterator[Note]:
    client = evidence.client
    if client is None:
        return
    reasons, remedies = list[str](), list[str]()
    if client.cpu_ratio >= MAX_CPU_RATIO:
        reasons.append(f"its busiest process used {100 * client.cpu_ratio:.0f} % of a core")
        remedies.append("more --processes, more cores, or less load")
    lags = list(_lags(evidence.measured, client))
    for lag in lags:
        if lag.time_s > _MIN_LAG_S:
            reasons.append(lag.text)
            remedies.append(lag.remedy)
    if reasons:
        text = f"not comparable: the client was the bottleneck: {' and '.join(reasons)}"
        yield Note("client-bottleneck", "invalid", f"{text}; use {', or '.join(dict.fromkeys(remedies))}")
        return
    for lag in lags:
        text = f"the client was late: {lag.text}, {100 * lag.share:.0f} % of {lag.of} P{lag.percentile}"
        yield Note("client-lag", "info", f"{text}: latency includes this time of the client's own")


@dataclass(frozen=True, slots=True)
class _Lag:
    """How late a client sent or read, if that is much of the latency."""

    percentile: str
    time_s: float
    share: float  # of this percentile of `of`
    of: str
    text: str
    remedy: str


def _lags(measured: Measurement, client: ClientHealth) -> Iterator[_Lag]:
    """Yield each kind of lag that is too large a share of the times that contain it."""
    latency, tokens, responses = measured.latency, measured.tokens, measured.responses
    if latency is not None:
        sent = "it sent {} requests {} late or later"
        times = (client.send_lag_p50_s, client.send_lag_p99_s)
        yield from _large(times, latency, "latency", sent, "more --processes, more cores, or less load")
    gaps = tokens.inter_token if tokens is not None else responses.gap if responses is not None else None
    read, of = (latency, "latency") if gaps is None else (gaps, "the time between chunks")
    if read is not None and client.cpu_wait_p50_s is not None and client.cpu_wait_p99_s is not None:
        waited = "it read {} answers {} late or later, since it waited for a processor"
        yield from _large((client.cpu_wait_p50_s, client.cpu_wait_p99_s), read, of, waited, "processors that are idle")


def _large(times_s: tuple[float, float], of: TimeDistribution, name: str, text: str, remedy: str) -> Iterator[_Lag]:
    """Yield one of the lags of P50 and P99 if it is large; rather one that also is long."""
    lags = [
        _Lag(key, lag, lag / max(of.percentiles[key].value, 1e-9), name, text.format(many, duration_text(lag)), remedy)
        for key, many, lag in zip(("50", "99"), ("half of all", "1 % of all"), times_s, strict=True)
    ]
    large = [lag for lag in lags if lag.share > _MAX_LAG_SHARES[lag.percentile] and lag.time_s > _MIN_NOTED_LAG_S]
    yield from [lag for lag in large if lag.time_s > _MIN_LAG_S][:1] or large[:1]


def _machine_notes(evidence: Evidence) -> Iterator[Note]:
    client, latency = evidence.client, evidence.measured.latency
    if client is None:
        return
    if client.steal_ratio is not None and client.steal_ratio > _MIN_STEAL:
        text = f"the hypervisor gave {100 * client.steal_ratio:.0f} % of the client's CPU time to other machines"
        yield Note("steal", "warning", f"{text}: latency includes it")
    throttled = (client.throttled_s or 0.0) / evidence.measured.window_s
    if throttled > _MIN_THROTTLED:
        text = f"the client's cgroup was throttled for {duration_text(client.throttled_s or 0.0)}"
        yield Note("throttled", "warning", f"{text}; raise its CPU limit")
    if client.cpu_wait_ratio is None and (client.pressure_ratio or 0.0) > _MIN_PRESSURE:
        text = f"processes of this machine waited for a processor in {100 * (client.pressure_ratio or 0.0):.0f} % of"
        yield Note("cpu-pressure", "warning", f"{text} the time, and the kernel does not count whether the client did")
    if latency is None:
        return
    p99 = latency.percentiles["99"].value
    if client.gc_pause_max_s > _MIN_PAUSE_SHARE * p99:
        text = f"garbage collection paused the client for up to {duration_text(client.gc_pause_max_s)}"
        yield Note("gc-pauses", "warning", f"{text}, P99 is {duration_text(p99)}")
    elif client.loop_lag_max_s > max(_MIN_PAUSE_SHARE * p99, client.send_lag_p99_s, _MIN_NOTED_LAG_S):
        text = f"a process of the client did not run for up to {duration_text(client.loop_lag_max_s)}"
        yield Note("client-pauses", "info", f"{text}, P99 is {duration_text(p99)}")


def _outcome_notes(evidence: Evidence) -> Iterator[Note]:
    measured, columns = evidence.measured, evidence.columns
    failed = errors_of(measured)
    answered = failed + measured.outcomes.get("ok", 0)
    if not measured.outcomes.get("ok", 0):
        yield Note("no-success", "invalid", "no request succeeded" if answered else "no request ended in the window")
    elif failed:
        share = failed / answered
        severity = "warning" if share >= _SERIOUS_ERRORS else "info"
        text = f"{failed:,} of {answered:,} requests failed ({100 * share:.3g} %); latency is of the others"
        yield Note("errors", severity, text)
    outage = _outage(evidence)
    if outage is not None:
        text = (
            f"connections failed from {outage[0]:.1f} s to {outage[1]:.1f} s, and requests succeeded before and after"
        )
        yield Note("server-restart", "invalid", f"{text}: the server restarted or was unreachable")
    overdue = int(columns.overdue.sum())
    if overdue:
        text = f"{overdue:,} requests were unanswered at the end: each counts with the time until then, a lower bound"
        severity = "warning" if overdue >= _SERIOUS_ERRORS * (answered + overdue) else "info"
        yield Note("unfinished", severity, text)
    if columns.excluded:
        text = f"{columns.excluded:,} requests in flight at the end were younger than the median latency: not counted"
        yield Note("in-flight", "info", text)


def _outage(evidence: Evidence) -> tuple[float, float] | None:
    """Return the longest time with connection errors and without a success, if requests succeeded around it."""
    columns = evidence.columns
    start, end = evidence.span
    failed = columns.done_s[columns.outcome == RequestOutcome.CONNECTION_ERROR]
    failed = failed[(failed >= start) & (failed < end)]
    if not len(failed):
        return None
    good = np.sort(columns.done_s[columns.is_ok])
    if len(good) < 2:
        return None
    place = np.searchsorted(good, failed)
    between = (place > 0) & (place < len(good))
    if not between.any():
        return None
    lengths = good[place[between]] - good[place[between] - 1]
    longest = int(np.argmax(lengths))
    typical = (good[-1] - good[0]) / len(good)
    if lengths[longest] < max(_MIN_OUTAGE_S, 20 * typical):
        return None
    last = int(place[between][longest])
    return float(good[last - 1]), float(good[last])


def _time_notes(evidence: Evidence) -> Iterator[Note]:
    columns, latency = evidence.columns, evidence.measured.latency
    if latency is None:
        return
    good = columns.ended & columns.is_ok
    steady = None
    if evidence.is_load_steady:
        steady = steadiness(columns.done_s[good], columns.latency_s[good], evidence.span)
    if steady is not None and (steady.since_s is None or steady.since_s > evidence.span[0] + 1e-9):
        yield _not_steady(steady, evidence)
    known = ~(columns.outcome == RequestOutcome.UNFINISHED)
    stalls = find_stalls(
        columns.intended_s, np.where(known, columns.done_s, np.inf), evidence.span, latency.percentiles["50"].value
    )
    if len(stalls.starts_s):
        yield _stalled(stalls, evidence)
    level = evidence.measured.level
    if evidence.is_open_loop and level.kind == "rate" and steady is not None and steady.since_s is None:
        shortfall = 1 - evidence.measured.throughput.value / level.value
        if shortfall > _MAX_RATE_SHORTFALL and "ok" in evidence.measured.outcomes:
            rate = evidence.measured.throughput.value
            text = f"the server answered {rate:,.4g} of {level.value:,.4g} requests per second"
            yield Note("overload", "warning", f"{text}: latency grows for as long as the load lasts")
    modes = two_modes(latency.histogram)
    if modes is not None:
        text = f"latency has two modes, near {duration_text(modes[0])} and {duration_text(modes[1])}"
        yield Note("bimodal", "info", f"{text} ({100 * modes[2]:.0f} % of requests): a mean says little")


def _not_steady(steady: Steadiness, evidence: Evidence) -> Note:
    start, end = evidence.span
    if steady.since_s is None:
        return Note("not-steady", "warning", f"not steady in the window of {end - start:.3g} s: {steady.trend_text}")
    at = steady.since_s - start
    text = f"steady only from {at:.1f} s after the start of the window; {steady.trend_text}"
    return Note("not-steady", "warning", f"{text}; use a longer --warm-up")


def _stalled(stalls: Stalls, evidence: Evidence) -> Note:
    count, longest = len(stalls.starts_s), float(stalls.lengths_s.max())
    text = f"no answer for {duration_text(longest)}" if count == 1 else f"no answer {count} times for up to "
    text += "" if count == 1 else duration_text(longest)
    text += f" although requests were in flight, at {stalls.starts_s[0]:.1f} s"
    text += "" if count == 1 else " first"
    if stalls.period_s is not None:
        text += f", about every {duration_text(stalls.period_s)}"
    if not evidence.is_open_loop:
        text += "; a closed loop sends less meanwhile, so percentiles hide this (coordinated omission): use --rate"
    return Note("stalls", "warning", text)


def _sample_notes(measured: Measurement) -> Iterator[Note]:
    latency = measured.latency
    if latency is None:
        return
    missing = [key for key, estimate in latency.percentiles.items() if estimate.high is None]
    if missing:
        lowest = min(missing, key=lambda key: _needed(float(key)))
        names = ", ".join(f"P{key}" for key in missing)
        severity = "warning" if float(lowest) <= 99 else "info"
        needed = _needed(float(lowest))
        if latency.count < needed:
            text = f"{latency.count:,} requests are too few for an interval of {names}; P{lowest} needs {needed:,}"
        else:
            text = f"{names}: no interval, since slow requests came together; a longer window has more such groups"
        yield Note("few-samples", severity, text)


def _needed(percentile: float) -> int:
    """Return how many independent values have one beyond the percentile on both sides with confidence 95 %."""
    p = max(percentile, 100 - percentile) / 100
    return math.ceil(math.log(0.025) / math.log(p)) if p < 1 else 0
