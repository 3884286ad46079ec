"""Decide from counters, sampled every second, whether something happened that a bundle should keep. No clock."""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import NamedTuple

P99_WINDOW_S = 30.0
FAILURES_WINDOW_S = 10.0
MIN_REQUESTS = 100  # in the window, before its P99 is judged


class Counts(NamedTuple):
    """Counters of a model version since it was loaded."""

    requests: int  # that succeeded
    slow: int  # of these, over the budget
    failures: int  # without cancelled requests
    deaths: int  # of processes of instances or engines


class Incident(NamedTuple):
    """What happened: a word for names of files, and a sentence."""

    reason: str
    detail: str


class Triggers:
    """Finds the begin of each incident.

    `p99_ms`: budget of the P99 of a model's requests over 30 s. `failures`: failed requests of a model in 10 s that are
    a burst. 0 for neither.
    """

    def __init__(self, p99_ms: float, failures: int) -> None:
        self._p99_ms = p99_ms
        self._failures = failures
        self._samples: dict[str, deque[tuple[float, Counts]]] = {}
        self._holding: set[tuple[str, str]] = set()  # (reason, model)

    def sample(self, counts: Mapping[str, Counts], now_s: float) -> list[Incident]:
        """Return the incidents that have begun since the sample before; `counts` are by name of the model."""
        begun: list[Incident] = []
        holding: set[tuple[str, str]] = set()
        samples = self._samples
        self._samples = {model: samples.get(model, deque()) for model in counts}
        for model, now in counts.items():
            window = self._samples[model]
            if not window or now.requests < window[-1][1].requests:  # loaded since, with counters from 0
                window.clear()
                window.append((now_s, Counts(0, 0, 0, 0)))
            for incident in self._incidents(model, window, now, now_s):
                holding.add((incident.reason, model))
                if incident.reason == "death" or (incident.reason, model) not in self._holding:
                    begun.append(incident)
            window.append((now_s, now))
            while window[0][0] < now_s - P99_WINDOW_S:
                window.popleft()
        self._holding = holding
        return begun

    def _incidents(
        self, model: str, window: deque[tuple[float, Counts]], now: Counts, now_s: float
    ) -> Iterator[Incident]:
        deaths = now.deaths - window[-1][1].deaths
        if deaths > 0:
            yield Incident("death", f"{deaths} processes of model '{model}' exited and are replaced")
        requests, slow = now.requests - window[0][1].requests, now.slow - window[0][1].slow
        if self._p99_ms and requests >= MIN_REQUESTS and slow * 100 > requests:
            yield Incident(
                "p99",
                f"the P99 of model '{model}' is over {self._p99_ms:g} ms: "
                f"{slow} of {requests} requests in {P99_WINDOW_S:.0f} s",
            )
        before = next(counts for at, counts in window if at >= now_s - FAILURES_WINDOW_S or counts is window[-1][1])
        failures = now.failures - before.failures
        if self._failures and failures >= self._failures:
            text = f"{failures} requests for model '{model}' failed in {FAILURES_WINDOW_S:.0f} s"
            yield Incident("failures", text)
