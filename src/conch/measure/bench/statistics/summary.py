"""Summarizes the records of one level of load as a Measurement."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from conch.measure.bench.measurement import ClientHealth, Estimate, Level, Measurement
from conch.measure.bench.records import Chunks, Records, RequestOutcome
from conch.measure.bench.statistics.diagnosis import Evidence, by_severity, diagnose
from conch.measure.bench.statistics.response_figures import response_figures, time_responses
from conch.measure.bench.statistics.selection import NS, RequestColumns, RunWindow, select
from conch.measure.bench.statistics.series import per_second
from conch.measure.bench.statistics.time_distribution import time_distribution
from conch.measure.bench.statistics.time_slices import rate_estimate, share_estimate, slice_times
from conch.measure.bench.statistics.token_figures import (
    TimedTokens,
    TokenCounts,
    chunk_rows,
    count_tokens,
    grouping_notes,
    has_tokens,
    mean_inter_token_s,
    time_tokens,
    token_figures,
)

MAX_ERRORS = 10
SLO_NAMES = ("ttft", "itl", "latency")


@dataclass(frozen=True, slots=True)
class SummarySettings:
    """What records do not say.

    `started_at` is UTC in ISO 8601. `slo` maps ttft, itl and latency to seconds. `input_tokens` are the tokens of each
    prepared request by its index, -1 if unknown, and count where the server reports none. `prompts` say by index which
    of the different prompts a request has; None: none is sent twice. `tokens_per_character` is
    measured by a tokenizer, for servers that report no usage. `is_load_steady` is False for ramps, bursts and traces,
    whose throughput and latency change by design. Without `has_tokens`, the chunks of a stream are responses.
    """

    level: Level
    started_at: str
    window: RunWindow
    is_open_loop: bool
    percentiles: tuple[float, ...] = ()
    slo: Mapping[str, float] = field(default_factory=dict)
    input_tokens: NDArray[np.int64] | None = None
    prompts: NDArray[np.int64] | None = None
    tokens_per_character: float | None = None
    client: ClientHealth | None = None
    is_load_steady: bool = True
    has_tokens: bool = True

    def __post_init__(self) -> None:
        unknown = set(self.slo) - set(SLO_NAMES)
        if unknown:
            raise ValueError(f"'{unknown.pop()}' is not a service level objective; expected {', '.join(SLO_NAMES)}")


def summarize(
    records: Records, chunks: Chunks, settings: SummarySettings, errors: Mapping[str, int] | None = None
) -> Measurement:
    """Return the figures of a window of a run, with notes. `errors` are messages with how often each was seen.

    Rows of `chunks` are those that `chunks_from` of the records refers to; `join_records` joins several arrays.
    """
    window = settings.window
    span = window.seconds
    columns = select(records, window, is_open_loop=settings.is_open_loop)
    counts, tokens = _tokens(records, chunks, settings)
    met = _met(records, columns, settings, tokens)
    ended = columns.ended
    latency_rows = columns.timed | columns.overdue
    at = columns.intended_s if settings.is_open_loop else columns.done_s
    sent = (records["sent_ns"] - window.run_start_ns) * NS
    service_rows = latency_rows & (records["sent_ns"] > 0)
    goodput, ratio = _goodput(columns, met, settings)
    measured = Measurement(
        level=settings.level,
        started_at=settings.started_at,
        window_s=window.duration_s,
        warm_up_s=span[0],
        requests=int(ended.sum()),
        outcomes=_outcomes(columns),
        errors=_most_frequent(errors or {}),
        throughput=rate_estimate(columns.done_s[ended & columns.is_ok], *span),
        latency=time_distribution(columns.latency_s[latency_rows], at[latency_rows], span, settings.percentiles),
        service_latency=time_distribution(
            (columns.done_s - sent)[service_rows], at[service_rows], span, settings.percentiles
        ),
        goodput=goodput,
        goodput_ratio=ratio,
        slo=dict(settings.slo),
        tokens=None
        if counts is None or tokens is None
        else token_figures(records, columns, window, counts, tokens, settings.percentiles, settings.prompts),
        responses=None
        if settings.has_tokens or tokens is None
        else response_figures(records, columns, window, tokens, settings.percentiles),
        received_bytes=int(records["received_bytes"][ended].sum()),
        sent_bytes=int(records["sent_bytes"][ended].sum()),
        client=settings.client,
        series=per_second(columns, span[1], tokens, "output_tokens" if settings.has_tokens else "responses"),
    )
    evidence = Evidence(measured, columns, span, settings.is_open_loop, settings.is_load_steady, settings.client)
    grouped = grouping_notes(tokens, columns) if counts is not None and tokens is not None else ()
    return replace(measured, notes=by_severity((*diagnose(evidence), *grouped)))


def _tokens(
    records: Records, chunks: Chunks, settings: SummarySettings
) -> tuple[TokenCounts | None, TimedTokens | None]:
    if not settings.has_tokens:
        return None, time_responses(records, chunks, chunk_rows(records, chunks), settings.window)
    if not has_tokens(records, chunks):
        return None, None
    rows = chunk_rows(records, chunks)
    counts = count_tokens(
        records,
        chunks,
        rows,
        input_tokens=settings.input_tokens,
        tokens_per_character=settings.tokens_per_character,
    )
    return counts, time_tokens(records, chunks, rows, counts, settings.window)


def _met(
    records: Records, columns: RequestColumns, settings: SummarySettings, tokens: TimedTokens | None
) -> NDArray[np.bool_]:
    """Return which requests succeeded within all objectives; one without a second token meets that on its gaps."""
    met, slo = columns.is_ok.copy(), settings.slo
    if "latency" in slo:
        met &= columns.latency_s <= slo["latency"]
    if "ttft" in slo:
        first_s = (records["first_ns"] - settings.window.run_start_ns) * NS
        met &= (records["first_ns"] > 0) & (first_s - columns.intended_s <= slo["ttft"])
    if "itl" in slo and tokens is not None:
        mean = mean_inter_token_s(tokens, len(records))
        met &= np.isnan(mean) | (mean <= slo["itl"])
    return met


def _goodput(
    columns: RequestColumns, met: NDArray[np.bool_], settings: SummarySettings
) -> tuple[Estimate | None, Estimate | None]:
    """Return requests per second that met all objectives, and their share of all but those the client cancelled."""
    if not settings.slo:
        return None, None
    span = settings.window.seconds
    rate = rate_estimate(columns.done_s[columns.ended & met], *span)
    start, end = span
    due = (columns.intended_s >= start) & (columns.intended_s < end) if settings.is_open_loop else columns.ended
    unfinished = columns.outcome == RequestOutcome.UNFINISHED
    asked = (due & ~unfinished & (columns.outcome != RequestOutcome.CANCELLED)) | columns.overdue
    if not asked.any():
        return rate, None
    at = columns.intended_s if settings.is_open_loop else columns.done_s
    return rate, share_estimate(met[asked], slice_times(at[asked], start, end))


def _outcomes(columns: RequestColumns) -> dict[str, int]:
    counts = np.bincount(columns.outcome[columns.ended], minlength=len(RequestOutcome))
    counts[RequestOutcome.UNFINISHED] = int(columns.overdue.sum()) + columns.excluded
    return {outcome.name.lower(): int(counts[outcome]) for outcome in RequestOutcome if counts[outcome]}


def _most_frequent(errors: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    ordered = sorted(errors.items(), key=lambda item: (-item[1], item[0]))
    return tuple(ordered[:MAX_ERRORS])
