"""From the times of chunks to the figures of a round. Standard library only, for the raw loop's sake."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

MILLISECONDS = 1e3


@dataclass
class Stream:
    """One request as who sent it saw it; times are seconds of one clock.

    `chunks` is when pieces of text came, `tokens` how many tokens they were in all.
    """

    sent: float
    chunks: list[float] = field(default_factory=list)
    tokens: int = 0
    ended: float = 0.0

    def gaps(self) -> list[float]:
        """Return the seconds per token between chunks.

        Each is the time between two chunks divided by the tokens that a chunk of this request after the first has on
        average: 1 for who sends every token by itself. So a server that sends two at a time does not look half as
        fast, nor one that sends ten late ones together quick.
        """
        chunks = self.chunks
        if len(chunks) < 2:
            return []
        share = (len(chunks) - 1) / max(self.tokens - 1, 1)
        return [(later - earlier) * share for earlier, later in pairwise(chunks)]


@dataclass(frozen=True)
class Timings:
    """The figures of one round, in seconds, milliseconds and tokens; `cpu_seconds` is the client's own."""

    seconds: float
    tokens: int
    chunks: int
    first_p50_ms: float
    first_p99_ms: float
    gap_p50_ms: float
    gap_p99_ms: float
    request_p50_ms: float
    errors: int
    first_error: str
    cpu_seconds: float


class Recorder:
    """Collects the streams of one round; made when the round begins."""

    def __init__(self) -> None:
        self._begun = time.perf_counter()
        self._cpu = time.process_time()
        self._streams: list[Stream] = []
        self._errors: list[str] = []

    def done(self, stream: Stream) -> None:
        """Take a stream that has come to its end."""
        self._streams.append(stream)

    def failed(self, why: str) -> None:
        """Count a request that came to nothing."""
        self._errors.append(why)

    def timings(self) -> Timings:
        """Return the figures of the round, which ends now."""
        streams = self._streams
        firsts = [stream.chunks[0] - stream.sent for stream in streams if stream.chunks]
        gaps = [gap for stream in streams for gap in stream.gaps()]
        return Timings(
            seconds=time.perf_counter() - self._begun,
            tokens=sum(stream.tokens for stream in streams),
            chunks=sum(len(stream.chunks) for stream in streams),
            first_p50_ms=percentile(firsts, 50) * MILLISECONDS,
            first_p99_ms=percentile(firsts, 99) * MILLISECONDS,
            gap_p50_ms=percentile(gaps, 50) * MILLISECONDS,
            gap_p99_ms=percentile(gaps, 99) * MILLISECONDS,
            request_p50_ms=percentile([stream.ended - stream.sent for stream in streams], 50) * MILLISECONDS,
            errors=len(self._errors),
            first_error=self._errors[0] if self._errors else "",
            cpu_seconds=time.process_time() - self._cpu,
        )


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that at least `percent` percent of all values do not exceed; 0 for no values."""
    if not values:
        return 0.0
    return sorted(values)[max(math.ceil(len(values) * percent / 100) - 1, 0)]
