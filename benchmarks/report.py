"""The table for people and the file for machines."""

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from benchmarks.figures import Figure, Result, Spread

OURS, THEIRS = "conch", "triton"
NOTHING = "–"
HEADINGS = (
    *("work", "figure", "better", "Triton", "Conch", "ratio"),
    *("CPU µs Triton", "CPU µs Conch", "CPU ratio", "MB Triton", "MB Conch"),
)


def table(results: Sequence[Result]) -> Table:
    """Return one row per work: the figure that counts, its ratio with its spread, processor time and memory."""
    drawn = Table(caption="medians over the rounds; ratios are Conch ÷ Triton of one round: median (lowest–highest)")
    for heading in HEADINGS:
        described = heading in HEADINGS[:3]
        drawn.add_column(heading, justify="left" if described else "right", no_wrap=described)
    for result in results:
        for row in _rows(result):
            drawn.add_row(*row)
        if result.error is not None:
            drawn.add_row(result.work, "[red]failed[/red]")
    return drawn


def markdown(results: Sequence[Result]) -> str:
    """Return the same table in Markdown, as `README.md` shows it."""
    lines = [
        _markdown_row(HEADINGS),
        _markdown_row(["---"] * 3 + ["---:"] * (len(HEADINGS) - 3)),
    ]
    lines += [_markdown_row(row) for result in results for row in _rows(result)]
    return "\n".join(lines) + "\n"


def machine() -> dict[str, str]:
    """Return what the figures were measured on."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "processor": models[0].split(":", 1)[1].strip() if models else platform.machine(),
        "cores": str(os.cpu_count()),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "generators": f"{_version(['wrk', '--version'])}, {_version(['h2load', '--version'])}",
    }


def write_json(file: Path, results: Sequence[Result], versions: Mapping[str, str]) -> None:
    """Write every figure of every round, with machine and versions."""
    document = {"machine": machine(), "servers": dict(versions), "results": [asdict(result) for result in results]}
    file.write_text(json.dumps(document, indent=2) + "\n")


def _rows(result: Result) -> list[list[str]]:
    """Return a row for the figure that counts with cost beside it, or one for each figure where no cost was taken."""
    named = {figure.name: figure for figure in result.figures if figure.rounds}
    if "cpu" not in named:
        return [[result.work, *_described(figure), *_compared(figure)] + [""] * 5 for figure in named.values()]
    counts, cpu, memory = result.figures[0], named["cpu"], named["memory"]
    return [[result.work, *_described(counts), *_compared(counts), *_compared(cpu), *_compared(memory)[:2]]]


def _described(figure: Figure) -> list[str]:
    return [f"{figure.name} {figure.unit}".strip(), "higher" if figure.higher_is_better else "lower"]


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _compared(figure: Figure) -> list[str]:
    ratio = figure.ratio(OURS, to=THEIRS)
    shown = NOTHING if ratio is None else f"{ratio.median:.2f} ({ratio.low:.2f}–{ratio.high:.2f})"
    return [_number(figure.spread(THEIRS)), _number(figure.spread(OURS)), shown]


def _number(spread: Spread | None) -> str:
    if spread is None:
        return NOTHING
    return f"{spread.median:,.0f}" if spread.median >= 20 else f"{spread.median:.2f}"


def _version(command: list[str]) -> str:
    """Return name and version from the first two words that a program prints; wrk does so with an error status."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return " ".join((done.stdout or done.stderr).split()[:2])
