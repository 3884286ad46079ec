"""The figures of a window, in a simple form."""

from collections.abc import Mapping

import numpy as np

from conch.bench.measurement import ClientHealth, Estimate, Level, Measurement, TimeDistribution
from conch.bench.measuring_window import Precision
from conch.bench.records import Chunks, Records, RequestOutcome

_MIN_WARM_UP_NS = 1_000_000_000
_PERCENTILES = ("50", "90", "95", "99", "99.9")


def steady_since(records: Records, start_ns: int, now_ns: int) -> int | None:
    """Return the time since which the run is steady, or None."""
    return now_ns if now_ns - start_ns > _MIN_WARM_UP_NS and len(records) else None


def is_precise(records: Records, start_ns: int, now_ns: int, precision: Precision) -> bool:
    """Return whether the interval of the percentile is narrow enough."""
    return len(records) > 10_000 and now_ns > start_ns and precision.percentile > 0


def summarize(
    records: Records,
    chunks: Chunks,
    *,
    level: Level,
    started_at: str,
    start_ns: int,
    window_start_ns: int,
    window_end_ns: int,
    errors: Mapping[str, int],
    slo: Mapping[str, float],
    is_open_loop: bool,
    client: ClientHealth | None,
) -> Measurement:
    """Return the figures of the requests that ended within the window."""
    _ = chunks, is_open_loop
    inside = records[(records["done_ns"] >= window_start_ns) & (records["done_ns"] <= window_end_ns)]
    window_s = max((window_end_ns - window_start_ns) / 1e9, 1e-9)
    good = inside[inside["outcome"] == RequestOutcome.OK]
    outcomes = {
        outcome.name.lower(): count
        for outcome in RequestOutcome
        if (count := int(np.count_nonzero(inside["outcome"] == outcome)))
    }
    return Measurement(
        level=level,
        started_at=started_at,
        window_s=window_s,
        warm_up_s=(window_start_ns - start_ns) / 1e9,
        requests=len(inside),
        outcomes=outcomes,
        errors=tuple(sorted(errors.items(), key=lambda item: -item[1])[:10]),
        throughput=Estimate(len(good) / window_s),
        latency=_distribution((good["done_ns"] - good["intended_ns"]) / 1e9),
        slo=dict(slo),
        received_bytes=int(inside["received_bytes"].sum()),
        sent_bytes=int(inside["sent_bytes"].sum()),
        client=client,
    )


def _distribution(seconds: "np.ndarray[tuple[int, ...], np.dtype[np.float64]]") -> TimeDistribution | None:
    if not len(seconds):
        return None
    percentiles = {name: Estimate(float(np.percentile(seconds, float(name)))) for name in _PERCENTILES}
    return TimeDistribution(len(seconds), Estimate(float(seconds.mean())), percentiles, float(seconds.max()), ())
