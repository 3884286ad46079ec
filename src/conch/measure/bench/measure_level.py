"""Measure one level of load: start it, warm up, measure for a window, stop it, summarise."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from time import monotonic_ns
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from conch.measure.bench.generator import LoadPlan, OpenLoop, ScriptSource
from conch.measure.bench.load.process_load import ProcessLoad
from conch.measure.bench.measurement import SERVER_LOST, ClientHealth, Level, Measurement, Note
from conch.measure.bench.observers.observer import Sampling, ServerObserver
from conch.measure.bench.plan import MAX_WARM_UP_S, Interruption, MeasuringWindow, Precision
from conch.measure.bench.records import RecordLog, RequestOutcome

if TYPE_CHECKING:
    from conch.measure.bench.statistics.selection import RunWindow
    from conch.measure.bench.statistics.stopping_rule import StoppingRule

_TICK_S = 0.1
_CHECK_NS = 500_000_000  # between evaluations of steady state and precision
_LOST_NS = 5_000_000_000  # without a success, but with failures: the server is gone
_END_MARGIN_S = 5.0  # beyond the grace, for the generator to end

# Codes of notes on a level that a signal ended.
INTERRUPTED = "interrupted"
IN_WARM_UP = "interrupted-warm-up"


@dataclass(frozen=True, slots=True)
class Progress:
    """A run in progress, for the live view. Times are nanoseconds of CLOCK_MONOTONIC."""

    level: Level
    phase: str  # "warm-up", "measuring", "ending"
    start_ns: int
    now_ns: int
    expected_s: float  # how long warm-up and window take, at most
    log: RecordLog
    gauges: Mapping[str, float]
    has_tokens: bool = True  # else a stream has responses


def measure_level(
    plan: LoadPlan,
    window: MeasuringWindow,
    level: Level,
    observers: Sequence[ServerObserver] = (),
    *,
    slo: Mapping[str, float] | None = None,
    percentiles: tuple[float, ...] = (),
    on_progress: Callable[[Progress], None] | None = None,
    interruption: Interruption | None = None,
    on_records: Callable[[RecordLog, "RunWindow"], None] | None = None,
) -> Measurement:
    """Measure one level and return its figures, also if the server failed or `interruption` was requested meanwhile.

    `on_records` gets all records at the end. Raises ConnectionError if no connection can be opened, RuntimeError if a
    process of the generator died.
    """
    load = ProcessLoad(plan)
    run = _LevelRun(load, plan, window, level, Sampling(observers), on_progress, interruption or Interruption())
    try:
        run.measure()
    finally:
        load.close()
    if on_records is not None:
        on_records(run.log, run.window())
    return run.measurement(slo or {}, percentiles)


def _input_tokens(source: ScriptSource) -> NDArray[np.int64] | None:
    """Return the tokens of each fixed request by its index, -1 where unknown; None if all are."""
    fixed = source.fixed
    if fixed is None or all(request.input_tokens < 0 for request in fixed):
        return None
    tokens = np.full(max(request.index for request in fixed) + 1, -1, np.int64)
    for request in fixed:
        tokens[request.index] = request.input_tokens
    return tokens


def _prompts(source: ScriptSource) -> NDArray[np.int64] | None:
    """Return which of its different bodies each fixed request has, by index; None if no body is sent twice."""
    fixed = source.fixed
    if fixed is None or any(request.next_body is not None for request in fixed):
        return None
    numbers: dict[bytes, int] = {}
    prompts = np.zeros(max(request.index for request in fixed) + 1, np.int64)
    for request in fixed:
        prompts[request.index] = numbers.setdefault(request.body, len(numbers))
    return prompts


def _stopping_rule(precision: Precision) -> "StoppingRule":
    from conch.measure.bench.statistics.stopping_rule import StoppingRule  # statistics are imported once the load runs

    return StoppingRule(precision.percentile, precision.half_width_ratio)


@dataclass(slots=True)
class _LevelRun:
    """One run of one level, from start to summary."""

    _load: ProcessLoad
    _plan: LoadPlan
    _window: MeasuringWindow
    _level: Level
    _sampling: Sampling
    _on_progress: Callable[[Progress], None] | None
    _interruption: Interruption
    log: RecordLog = field(default_factory=RecordLog)
    _started_at: str = ""
    _start_ns: int = 0
    _window_start_ns: int | None = None
    _window_end_ns: int = 0
    _marked_end_ns: int = 0  # when the end was noticed: servers are sampled then
    _next_check_ns: int = 0
    _last_success_ns: int = 0
    _health: ClientHealth | None = None
    _notes: list[Note] = field(default_factory=list)
    _rule: "StoppingRule | None" = None

    def measure(self) -> None:
        """Run the load until the window has ended and all of its processes have."""
        if self._window.precision is not None:
            self._rule = _stopping_rule(self._window.precision)
        self._load.start()
        self._started_at = datetime.now(UTC).isoformat(timespec="seconds")
        self._start_ns = self._last_success_ns = monotonic_ns()
        self._next_check_ns = self._start_ns + _CHECK_NS
        self._sampling.start()
        try:
            while not self._has_ended():
                self._report("warm-up" if self._window_start_ns is None else "measuring")
            self._marked_end_ns = monotonic_ns()
            self._window_end_ns = self._window_end_ns or self._marked_end_ns
            self._sampling.mark()
            self._health = self._load.health()
            self._end()
        finally:
            self._sampling.stop()

    def _has_ended(self) -> bool:
        """Collect for one tick; return whether the window is over."""
        collected = self._load.collect(_TICK_S)
        self.log.add(collected)
        now = monotonic_ns()
        if np.any(collected.records["outcome"] == RequestOutcome.OK):
            self._last_success_ns = now
        if collected.ended:
            return True
        if self._interruption.requested:
            self._notes.append(_INTERRUPTED if self._window_start_ns is not None else _INTERRUPTED_WARM_UP)
            return True
        if self._is_lost(now):
            self._notes.append(_LOST)
            return True
        check = now >= self._next_check_ns
        if check:
            self._next_check_ns = now + _CHECK_NS
        if self._window_start_ns is None:
            return self._warm_up(now, check=check)
        return self._is_window_over(now, check=check)

    def _is_lost(self, now: int) -> bool:
        """Return whether all requests of the last seconds failed for lack of a connection."""
        if now - self._last_success_ns < _LOST_NS:
            return False
        recent = self.log.tail(now - _LOST_NS)
        return len(recent) > 0 and bool(np.all(recent["outcome"] == RequestOutcome.CONNECTION_ERROR))

    def _warm_up(self, now: int, *, check: bool) -> bool:
        """Begin the window if warm-up is over. Returns False: it is not over itself."""
        elapsed_s = (now - self._start_ns) / 1e9
        fixed = self._window.warm_up_s
        if fixed is not None:
            if elapsed_s >= fixed:
                self._begin_window(self._start_ns + int(fixed * 1e9))
        elif check and (steady_ns := self._steady_since()) is not None:
            self._begin_window(steady_ns)
        elif elapsed_s >= MAX_WARM_UP_S:
            self._begin_window(now)
        return False

    def _steady_since(self) -> int | None:
        from conch.measure.bench.statistics.steady_state import steady_since

        return steady_since(self.log.records, self._start_ns, monotonic_ns())

    def _begin_window(self, start_ns: int) -> None:
        self._window_start_ns = start_ns
        self._sampling.mark()
        # A window that was found to be steady began earlier: the client's health is of the span that fits it better.
        if monotonic_ns() - start_ns <= start_ns - self._start_ns:
            self._load.health()  # what comes next counts from here

    def _is_window_over(self, now: int, *, check: bool) -> bool:
        window = self._window
        assert self._window_start_ns is not None
        elapsed_s = (now - self._window_start_ns) / 1e9
        if elapsed_s >= window.max_duration_s and window.duration_s is None:
            return True
        if window.duration_s is not None and elapsed_s >= window.duration_s:
            self._window_end_ns = self._window_start_ns + int(window.duration_s * 1e9)
            return True
        if check and window.requests is not None:
            done_ns = self.log.records["done_ns"]
            done_ns = done_ns[done_ns >= self._window_start_ns]
            if len(done_ns) >= window.requests:
                last = window.requests - 1
                self._window_end_ns = int(np.partition(done_ns, last)[last]) + 1
                return True
        return check and self._rule is not None and self._rule.is_met(self.log.records, self._window_start_ns, now)

    def _end(self) -> None:
        """Stop the load and collect the answers to requests in flight."""
        self._load.stop(self._window.grace_s)
        deadline = monotonic_ns() + int((self._window.grace_s + _END_MARGIN_S) * 1e9)
        while monotonic_ns() < deadline:
            collected = self._load.collect(_TICK_S)
            self.log.add(collected)
            if collected.ended:
                return
            self._report("ending")

    @property
    def _expected_s(self) -> float:
        """How long warm-up and window take together, at most; the warm-up counts as it was once it is over."""
        if self._window_start_ns is None:
            return self._window.limit_s
        return (self._window_start_ns - self._start_ns) / 1e9 + self._window.max_window_s

    def _report(self, phase: str) -> None:
        if self._on_progress is not None:
            self._on_progress(
                Progress(
                    self._level,
                    phase,
                    self._start_ns,
                    monotonic_ns(),
                    self._expected_s,
                    self.log,
                    self._sampling.gauges(),
                    self._plan.has_tokens,
                )
            )

    def window(self) -> "RunWindow":
        """Return the run and its window; the whole run if it ended before the window began."""
        from conch.measure.bench.statistics.selection import RunWindow

        start_ns = self._window_start_ns if self._window_start_ns is not None else self._start_ns
        return RunWindow(self._start_ns, start_ns, max(self._window_end_ns, start_ns + 1))

    def measurement(self, slo: Mapping[str, float], percentiles: tuple[float, ...]) -> Measurement:
        """Return the figures of the window."""
        from conch.measure.bench.statistics.diagnosis import by_severity
        from conch.measure.bench.statistics.summary import SummarySettings, summarize

        window = self.window()
        observed = self._sampling.observed(window.start_ns, self._marked_end_ns)
        settings = SummarySettings(
            level=self._level,
            started_at=self._started_at,
            window=window,
            is_open_loop=isinstance(self._plan.pacing, OpenLoop),
            percentiles=percentiles,
            slo=slo,
            input_tokens=_input_tokens(self._plan.source),
            prompts=_prompts(self._plan.source),
            has_tokens=self._plan.has_tokens,
            client=self._health,
            is_load_steady=self._window.is_load_steady,
        )
        summary = summarize(self.log.records, self.log.chunks, settings, self.log.errors)
        return replace(
            summary,
            server=observed.server,
            gpus=observed.gpus,
            notes=by_severity((*summary.notes, *self._notes, *observed.notes)),
        )


_INTERRUPTED = Note(INTERRUPTED, "info", "interrupted; the figures are of the time until then")
_INTERRUPTED_WARM_UP = Note(IN_WARM_UP, "warning", "interrupted during the warm-up, of which the figures are")
_LOST = Note(SERVER_LOST, "invalid", "only connection errors for 5 s: the server is gone; the run ended early")
