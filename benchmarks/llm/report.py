"""The table of `benchmarks.llm`, what was to be reached, and the file for machines."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.harness.figures import Figure, Spread, spread
from benchmarks.llm.systems import CONCH, CONCH_VLLM, RAW, SYSTEMS, VLLM
from benchmarks.llm.timings import Timings
from benchmarks.llm.work import Work

MEGABYTE = 1e6
NOTHING = "–"

RATE, FIRST_P99, LATENCY = "output", "TTFT P99", "request P50"
SHOWN = (RATE, "TTFT P50", FIRST_P99, "gap P50", "gap P99", "CPU", "memory", "client CPU", "errors")

# Of prompts, those that the goals call short.
_SHORT = 16


@dataclass(frozen=True)
class Sample:
    """One round of one system: what clients saw and what it cost; `cpu_seconds` and memory are the system's."""

    timings: Timings
    cpu_seconds: float
    memory_bytes: int


@dataclass
class Measured:
    """All rounds of one work. `failures` are a system's and a request's error texts, the first of each round."""

    work: Work
    figures: list[Figure] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.figures = [
            Figure(RATE, "tok/s", higher_is_better=True),
            *(
                Figure(name, "ms", higher_is_better=False)
                for name in ("TTFT P50", FIRST_P99, "gap P50", "gap P99", LATENCY)
            ),
            Figure("CPU", "s/1000 tok", higher_is_better=False),
            Figure("memory", "MB", higher_is_better=False),
            Figure("client CPU", "s/1000 tok", higher_is_better=False),
            Figure("errors", "", higher_is_better=False),
            Figure("tokens per chunk", "", higher_is_better=False),
        ]

    def add(self, system: str, sample: Sample) -> None:
        """Note one round of a system."""
        seen = sample.timings
        thousands = max(seen.tokens, 1) / 1000
        values = {
            RATE: seen.tokens / seen.seconds,
            "TTFT P50": seen.first_p50_ms,
            FIRST_P99: seen.first_p99_ms,
            "gap P50": seen.gap_p50_ms,
            "gap P99": seen.gap_p99_ms,
            LATENCY: seen.request_p50_ms,
            "CPU": sample.cpu_seconds / thousands,
            "memory": sample.memory_bytes / MEGABYTE,
            # The raw loop's client is the loop.
            "client CPU": 0.0 if system == RAW else seen.cpu_seconds / thousands,
            "errors": seen.errors,
            "tokens per chunk": seen.tokens / max(seen.chunks, 1),
        }
        for figure in self.figures:
            figure.add(system, values[figure.name])
        if seen.errors:
            self.failures.append(f"{system}: {seen.first_error}")

    def figure(self, name: str) -> Figure:
        """Return the figure of that name."""
        return next(figure for figure in self.figures if figure.name == name)


@dataclass(frozen=True)
class Goal:
    """What a system's figure divided by another's, round by round, is to reach; `concurrency` and `short` narrow it."""

    system: str
    beside: str
    figure: str
    bound: float
    concurrency: tuple[int, ...] = ()
    short: bool | None = None

    def holds_for(self, work: Work) -> bool:
        """Whether it was set for this work."""
        if self.concurrency and work.concurrency not in self.concurrency:
            return False
        return self.short is None or self.short == (work.prompt_tokens <= _SHORT)

    def verdict(self, measured: Measured) -> str | None:
        """Return what was reached, in a line; None where one of the two was not measured."""
        figure = measured.figure(self.figure)
        ratio = figure.ratio(self.system, to=self.beside)
        if ratio is None:
            return None
        more = figure.higher_is_better
        reached = ratio.median >= self.bound if more else ratio.median <= self.bound
        return (
            f"{measured.work.name}: {self.figure} of {self.system} ÷ {self.beside} {in_words(ratio)}, "
            f"to reach {'≥' if more else '≤'} {self.bound:g}: {'yes' if reached else 'no'}"
        )


GOALS = (
    Goal(CONCH, RAW, RATE, 0.95, concurrency=(30, 64)),
    Goal(CONCH, RAW, RATE, 0.85, concurrency=(1,)),
    Goal(CONCH, RAW, FIRST_P99, 1.3),
    Goal(CONCH, VLLM, RATE, 1.6, concurrency=(30,), short=True),
    Goal(CONCH, VLLM, RATE, 1.3, concurrency=(30,), short=False),
    Goal(CONCH_VLLM, VLLM, RATE, 0.97),
    Goal(CONCH_VLLM, VLLM, FIRST_P99, 1.0),
)

# How many times as long as a lone request those of 30 at once may take.
_CROWD, _CROWDED = 30, 4.0


def markdown(results: Sequence[Measured]) -> str:
    """Return the medians over the rounds, the rate with its spread, one row for each work and system."""
    headings = ["prompt", "at once", "system"]
    units = {figure.name: figure.unit for measured in results[:1] for figure in measured.figures}
    lines = [
        _row([*headings, *(f"{name} {units[name]}".strip() for name in SHOWN)]),
        _row(["---:", "---:", "---", *["---:"] * len(SHOWN)]),
    ]
    for measured in results:
        for system in SYSTEMS:
            spreads = [measured.figure(name).spread(system) for name in SHOWN]
            if any(spreads):
                cells = [in_words(spreads[0]), *(_number(value) for value in spreads[1:])]
                named = [str(measured.work.prompt_tokens), str(measured.work.concurrency), system]
                lines.append(_row([*named, *cells]))
    return "\n".join(lines) + "\n"


def verdicts(results: Sequence[Measured]) -> list[str]:
    """Return a line for each goal that was measured."""
    lines = [
        verdict
        for goal in GOALS
        for measured in results
        if goal.holds_for(measured.work) and (verdict := goal.verdict(measured)) is not None
    ]
    return [*lines, *_crowded(results)]


def write_json(file: Path, results: Sequence[Measured], machine: Mapping[str, str], systems: Mapping[str, str]) -> None:
    """Write every figure of every round, with machine and packages."""
    document = {"machine": dict(machine), "systems": dict(systems), "results": [asdict(result) for result in results]}
    file.write_text(json.dumps(document, indent=2) + "\n")


def _crowded(results: Sequence[Measured]) -> list[str]:
    """Compare what a request takes among 30 with what a lone one takes."""
    lines = []
    for crowd in results:
        for lone in results:
            if (lone.work.concurrency, crowd.work.concurrency) != (1, _CROWD):
                continue
            if lone.work.prompt_tokens != crowd.work.prompt_tokens:
                continue
            pairs = zip(*(run.figure(LATENCY).rounds.get(CONCH, []) for run in (crowd, lone)), strict=False)
            ratio = spread([many / pair for many, pair in pairs if pair])
            if ratio is not None:
                lines.append(
                    f"{crowd.work.name}: {LATENCY} of {CONCH} ÷ that of a lone request {in_words(ratio)}, "
                    f"to reach ≤ {_CROWDED:g}: {'yes' if ratio.median <= _CROWDED else 'no'}"
                )
    return lines


def in_words(spread: Spread | None) -> str:
    """Return a spread in words: median (lowest–highest)."""
    if spread is None:
        return NOTHING
    digits = 0 if spread.median >= 20 else 2
    return f"{spread.median:,.{digits}f} ({spread.low:,.{digits}f}–{spread.high:,.{digits}f})"


def _number(spread: Spread | None) -> str:
    if spread is None:
        return NOTHING
    if spread.median == 0:
        return "0"
    return f"{spread.median:,.{0 if spread.median >= 100 else 1 if spread.median >= 10 else 2}f}"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
