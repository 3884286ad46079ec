"""The table for people and the file for machines."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from benchmarks.harness.figures import ALONE, CONCH, TRITON, Figure, Result, Spread, Target

NOTHING = "–"
HEADINGS = (
    *("work", "figure", "better", "Triton", "Conch", "ratio", "reach"),
    *("alone", "Conch ÷ alone", "reach"),
    *("CPU µs Triton", "CPU µs Conch", "CPU ratio", "reach", "MB Triton", "MB Conch"),
)
DESCRIBED = 3


def table(results: Sequence[Result]) -> Table:
    """Return one row per work: the figure that counts, its ratios with their spread, processor time and memory."""
    drawn = Table(caption="medians over the rounds; ratios are Conch ÷ Triton of one round: median (lowest–highest)")
    for number, heading in enumerate(HEADINGS):
        described = number < DESCRIBED
        drawn.add_column(heading, justify="left" if described else "right", no_wrap=described)
    for result in results:
        for row in rows(result):
            drawn.add_row(*row)
        if result.error is not None:
            drawn.add_row(result.work, "[red]failed[/red]")
    return drawn


def markdown(results: Sequence[Result]) -> str:
    """Return the same table in Markdown, as `README.md` shows it."""
    lines = [
        _markdown_row(HEADINGS),
        _markdown_row(["---"] * DESCRIBED + ["---:"] * (len(HEADINGS) - DESCRIBED)),
    ]
    for result in results:
        lines += [_markdown_row(row) for row in rows(result)]
        if result.error is not None:
            lines.append(_markdown_row([result.work, "failed"] + [""] * (len(HEADINGS) - 2)))
    return "\n".join(lines) + "\n"


def summary(results: Sequence[Result]) -> str:
    """Return how many of the targets that were measured are reached, and which are not."""
    verdicts: dict[str, bool] = {}
    for result in results:
        for target in result.targets if result.figures else ():
            figure = result.figure(target.figure)
            reached = target.reached(figure)
            if reached is not None:
                verdicts[f"{result.work} {figure.name} {_bound(target, figure)} of {target.beside}"] = reached
    missed = [name for name, reached in verdicts.items() if not reached]
    told = f"{len(verdicts) - len(missed)} of {len(verdicts)} targets reached"
    return f"{told}; not: {', '.join(missed)}" if missed else told


def write_json(file: Path, results: Sequence[Result], machine: Mapping[str, str], versions: Mapping[str, str]) -> None:
    """Write every figure of every round, with machine and versions."""
    document = {
        "machine": dict(machine),
        "servers": dict(versions),
        "results": [asdict(result) for result in results],
    }
    file.write_text(json.dumps(document, indent=2) + "\n")


def rows(result: Result) -> list[list[str]]:
    """Return a row for the figure that counts with cost beside it, or one for each figure where no cost was taken."""
    named = {figure.name: figure for figure in result.figures if figure.rounds}
    if "cpu" not in named:
        return [[*_started(result, figure), *[""] * 9] for figure in named.values()]
    counts, cpu, memory = result.figures[0], named["cpu"], named["memory"]
    alone = [""] * 3
    if ALONE in counts.rounds:
        alone = [_number(counts.spread(ALONE)), _ratio(counts, ALONE), _reach(result, counts, ALONE)]
    return [
        [
            *_started(result, counts),
            *alone,
            *_compared(cpu),
            _reach(result, cpu, TRITON),
            *_compared(memory)[:2],
        ]
    ]


def _started(result: Result, figure: Figure) -> list[str]:
    """Return the cells that every row begins with."""
    described = [f"{figure.name} {figure.unit}".strip(), "higher" if figure.higher_is_better else "lower"]
    return [result.work, *described, *_compared(figure), _reach(result, figure, TRITON)]


def _reach(result: Result, figure: Figure, beside: str) -> str:
    """Return the bound of the figure's ratio and whether it is reached; nothing where none was set."""
    for target in result.targets:
        if (target.figure, target.beside) == (figure.name, beside):
            words = {True: "yes", False: "no", None: NOTHING}
            return f"{_bound(target, figure)} {words[target.reached(figure)]}"
    return ""


def _bound(target: Target, figure: Figure) -> str:
    return f"{'≥' if figure.higher_is_better else '≤'} {target.bound:g}"


def _compared(figure: Figure) -> list[str]:
    return [_number(figure.spread(TRITON)), _number(figure.spread(CONCH)), _ratio(figure, TRITON)]


def _ratio(figure: Figure, to: str) -> str:
    ratio = figure.ratio(CONCH, to=to)
    return NOTHING if ratio is None else f"{ratio.median:.2f} ({ratio.low:.2f}–{ratio.high:.2f})"


def _number(spread: Spread | None) -> str:
    if spread is None:
        return NOTHING
    return f"{spread.median:,.0f}" if spread.median >= 20 else f"{spread.median:.2f}"


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
