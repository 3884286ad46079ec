"""Write the page of all degradations, `docs/degradations.md`: `python -m tools.degradations_page`."""

from pathlib import Path

from conch.domain.degradations import DegradationReason, reasons

PAGE = Path(__file__).parents[1] / "docs" / "degradations.md"

_HEAD = """\
# Degradations

A server that runs worse than its configuration asks says so. Each way has a reason from the tables below:

* in the metric `conch_degraded{model, reason}`: 1 while it holds, absent when it is cured; what happens at one moment,
  such as the restart of a process, is shown for 10 minutes;
* in the log, as a warning, once;
* in the table `degraded` at the end of the start, the most severe first, with costs and cure;
* in the header `X-Conch-Degraded` of an answer, in the trailing metadata `x-conch-degraded` of gRPC, for reasons of
  the answer; of a stream over HTTP where the reason is known before its first byte;
* in `conch doctor`, `conch top` and `conch ps`.

Series are bounded: at most one for each model and reason. Requests pay nothing: conditions that develop are read from
the counters every 5 seconds.

`--strict=true` refuses the start of the server, or the load of a model, for each reason that is known by then (✓);
`--strict=kind_gpu_on_cpu,cache_off` for these two. The error names the cure. Other reasons occur while a server runs;
alert on `max by (model, reason) (conch_degraded) > 0`.
"""
_TITLES = {"model": "Of a model", "answer": "Of an answer", "server": "Of the server"}


def page() -> str:
    """Return the page as Markdown."""
    parts = [_HEAD]
    for scope, title in _TITLES.items():
        parts.append(f"## {title}\n\n| Reason | `--strict` | What it costs | Cure |\n|---|---|---|---|")
        parts += [_row(reason) for reason in reasons().values() if reason.scope == scope]
        parts.append("")
    return "\n".join(parts).rstrip() + "\n"


def _row(reason: DegradationReason) -> str:
    cells = (f"`{reason.id}`", "✓" if reason.refusable else "", reason.costs, f"{reason.cure}.")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
