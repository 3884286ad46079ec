"""One run of `conch bench`: levels one after the other, a search, or two servers in turn, and the certificate."""

from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from conch.base.durations import duration_text
from conch.measure.bench.generator import LoadPlan
from conch.measure.bench.inputs.answer_check import answer_check
from conch.measure.bench.levels import FindMax, LoadLevel, Replay, window_for
from conch.measure.bench.measure_level import IN_WARM_UP, INTERRUPTED, measure_level
from conch.measure.bench.measurement import Measurement, Note
from conch.measure.bench.plan import BenchPlan, Interruption
from conch.measure.bench.prepared_run import PreparedRun, Side
from conch.measure.bench.run_view import RunView, level_name

if TYPE_CHECKING:
    from conch.measure.bench.report.certificate import Certificate
    from conch.measure.bench.report.request_records import RequestRecords


class BenchRun:
    """Measures what the plan asks, and makes the certificate. `interruption` ends it early."""

    def __init__(
        self,
        run: PreparedRun,
        view: RunView,
        interruption: Interruption | None = None,
        records: "RequestRecords | None" = None,
    ) -> None:
        self._run = run
        self._plan = run.plan
        self._view = view
        self._interruption = interruption or Interruption()
        self._records = records
        self._rounds: dict[str, list[Measurement]] = {}  # by label of the level
        self._baseline: dict[str, list[Measurement]] = {}
        self._lost = False
        self._notes: list[Note] = []
        self._cut = ""  # what was interrupted

    def run(self) -> "Certificate":
        """Measure, and return the certificate also of a part. Raises ConnectionError, RuntimeError."""
        created_at = datetime.now(UTC).isoformat(timespec="seconds")
        if isinstance(self._run.load, FindMax):
            self._search(self._run.load)
        elif self._run.against is not None:
            for level in self._run.load:
                self._compare(self._run.against, level)
        else:
            self._sweep(self._run.load)
        if self._interruption.requested:
            self._notes.append(self._interrupted_note())
        return self._certificate(created_at)

    def _certificate(self, created_at: str) -> "Certificate":
        from conch.measure.bench.certify import certify  # what only the report needs is imported after the load

        return certify(self._run, created_at, self._rounds, self._baseline, self._notes)

    def _sweep(self, levels: tuple[LoadLevel, ...]) -> None:
        """Measure all levels; with repetitions, each as often, all levels one after the other."""
        for repetition in range(self._plan.repeat):
            for level in levels:
                if self._is_over:
                    return
                self._measure(self._run.side, level, repetition, self._rounds.setdefault(level.level.label, []))

    def _compare(self, baseline: Side, level: LoadLevel) -> None:
        """Measure both servers in turn: A B, B A, A B, …, so that a drift of the machine meets both alike."""
        a: list[Measurement] = []
        b: list[Measurement] = []
        for number in range(self._plan.pairs):
            order = [(baseline, a), (self._run.side, b)]
            for side, taken in order if number % 2 == 0 else reversed(order):
                if self._is_over:
                    break
                self._measure(side, level, number, taken)
        pairs = min(len(a), len(b))
        if pairs:
            self._rounds[level.level.label] = b[:pairs]
            self._baseline[level.level.label] = a[:pairs]

    @property
    def _is_over(self) -> bool:
        return self._interruption.requested or self._lost

    def _search(self, find_max: FindMax) -> None:
        tried: dict[float, bool] = {}
        while (value := find_max.search.next_level(tried)) is not None and not self._is_over:
            level = find_max.level(value)
            measurement = self._measure(self._run.side, level, 0, self._rounds.setdefault(level.level.label, []))
            if not is_interrupted(measurement):
                tried[value] = meets_slo(measurement, self._plan.slo_share)
        note = _search_note(find_max, tried, self._plan)
        if self._interruption.requested:
            result = f"until then, {note.message}" if tried else "no load was measured"
            note = Note(note.code, "warning", f"the search was interrupted; {result}")
        self._notes.append(note)

    def _measure(self, side: Side, level: LoadLevel, repetition: int, taken: list[Measurement]) -> Measurement:
        """Measure one level and append the result to `taken`."""
        window = window_for(level, self._plan.window())
        seed = self._plan.seed + repetition
        plan = LoadPlan(
            side.target.endpoint,
            side.source,
            level.pacing(len(side.source.fixed or ()))
            if isinstance(level, Replay)
            else level.pacing(window.limit_s, seed),
            timeout_s=self._plan.timeout_s,
            connections=self._plan.connections,
            seed=seed,
            check=answer_check(side.target),
            has_tokens=side.target.takes_prompts,
            processes=self._plan.processes,
        )
        measured = measure_level(
            plan,
            window,
            level.level,
            side.observers,
            slo=self._plan.slo,
            percentiles=self._plan.percentile,
            on_progress=self._view.progress,
            interruption=self._interruption,
            on_records=None
            if self._records is None
            else partial(self._records.add, side.target.url, repetition, level.level),
        )
        self._lost = measured.server_lost
        if not is_interrupted(measured):
            taken.append(measured)
        elif self._keep_part(measured, taken):
            self._cut = f"{level_name(level.level.kind, level.level.label)}, {_cut_text(measured)}"
            taken.append(measured)
        else:
            self._cut = f"{level_name(level.level.kind, level.level.label)}, which is left out"
        self._view.measured(measured)
        return measured

    def _keep_part(self, measured: Measurement, taken: list[Measurement]) -> bool:
        """Return whether an interrupted level is part of the certificate: finished ones stay comparable."""
        if taken:  # a whole round of this level
            return False
        finished = any(self._rounds.values())
        usable = measured.requests > 0 and all(note.severity != "invalid" for note in measured.notes)
        return not finished or (usable and not any(note.code == IN_WARM_UP for note in measured.notes))

    def _interrupted_note(self) -> Note:
        """Return which level was interrupted, and which were not measured."""
        planned = () if isinstance(self._run.load, FindMax) else self._run.load
        names = [level_name(level.level.kind, level.level.label) for level in planned]
        measured = {level_name(part.level.kind, part.level.label) for taken in self._rounds.values() for part in taken}
        missing = [name for name in dict.fromkeys(names) if name not in measured and not self._cut.startswith(name)]
        text = f"interrupted at {self._cut}" if self._cut else "interrupted between two levels"
        return Note("interrupted", "warning", f"{text}; not measured: {', '.join(missing)}" if missing else text)


def meets_slo(measurement: Measurement, share: float) -> bool:
    """Return whether at least `share` of the requests met the SLOs."""
    ratio = measurement.goodput_ratio
    return ratio is not None and ratio.value >= share


def is_interrupted(measurement: Measurement) -> bool:
    """Return whether the measurement was ended by a signal."""
    return any(note.code in (INTERRUPTED, IN_WARM_UP) for note in measurement.notes)


def _cut_text(measured: Measurement) -> str:
    if any(note.code == IN_WARM_UP for note in measured.notes):
        return "during its warm-up, of which its figures are"
    return f"{duration_text(measured.window_s)} into its window: its figures are of the time until then"


def _search_note(find_max: FindMax, tried: dict[float, bool], plan: BenchPlan) -> Note:
    targets = ", ".join(f"{name} {duration_text(seconds)}" for name, seconds in plan.slo.items())
    rule = f"{100 * plan.slo_share:.4g} % of requests within {targets}"
    best = find_max.search.best(tried)
    if best is None:
        lowest = _level_text(find_max, min(tried, default=find_max.search.lowest))
        return Note("slo-not-met", "warning", f"the lowest load, {lowest}, does not meet the SLO: {rule}")
    level = _level_text(find_max, best)
    reached = "" if any(not met for met in tried.values()) else "; no load failed, the maximum may be higher"
    return Note("slo-max", "info", f"highest load that meets the SLO: {level} ({rule}){reached}")


def _level_text(find_max: FindMax, value: float) -> str:
    level = find_max.level(value).level
    return level_name(level.kind, level.label)
