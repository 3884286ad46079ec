"""Answers in the terminal, and as one HTML page."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from conch.base.control_characters import printable
from conch.base.report.page import facts, page, table, tag, verdict
from conch.base.report.waterfall import draw_waterfall, duration, print_rows
from conch.domain.causes.cause import CAUSES
from conch.measure.why.answer import MARKS, Explanation

_MIN_SHARE = 0.005  # of causes that are shown


def print_answer(answer: Explanation, console: Console) -> None:
    """Print sentences, causes and the waterfall."""
    for place, sentence in enumerate(answer.sentences):
        console.print(Text(printable(sentence), "" if place else "bold"), soft_wrap=not console.is_terminal)
    console.print()
    if answer.percentile is not None:
        some = answer.percentile
        table = _table("cause", "model", "slow", "ordinary")
        for cause in some.causes:
            if max(cause.slow_ns, cause.ordinary_ns) >= _MIN_SHARE * some.slow_ns:
                times = (duration(cause.slow_ns), duration(cause.ordinary_ns))
                table.add_row(CAUSES[cause.cause].label, escape(printable(cause.model)), *times)
        console.print(table)
        console.print()
    title = f"for example {answer.title}" if answer.percentile is not None else answer.title
    console.print(Text(printable(title), "bold"), soft_wrap=not console.is_terminal)
    print_rows(answer.rows(), MARKS, console)
    if answer.percentile is None:
        console.print()
        table = _table("cause", "model", "time", "share")
        for line in answer.causes():
            if line.share >= _MIN_SHARE:
                table.add_row(line.label, escape(printable(line.model)), duration(line.ns), f"{line.share:.1%}")
        console.print(table)
    for text in answer.batches():
        console.print(Text(printable(text)), soft_wrap=not console.is_terminal)


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, name in enumerate(names):
        table.add_column(name, justify="right" if place > 1 else "left", no_wrap=place > 1, overflow="fold")
    return table


def html_page(answer: Explanation) -> str:
    """Return the page: sentences, causes, waterfall, and what was waited for."""
    some = answer.percentile
    title = f"Why p{some.percentile:g}" if some is not None else f"Why request #{answer.request.number}"
    causes = [(line.label, line.model, duration(line.ns), f"{line.share:.1%}") for line in answer.causes()]
    content = [
        tag("p", answer.title if some is None else f"for example {answer.title}", class_="lead"),
        verdict([*answer.sentences, *answer.warnings], "warning" if answer.warnings else ""),
        draw_waterfall(answer.rows(), MARKS),
        table(("cause", "model", "time", "share"), causes, "Causes", prose=(1,)),
    ]
    if some is not None:
        ranked = [
            (CAUSES[cause.cause].label, cause.model, duration(cause.slow_ns), duration(cause.ordinary_ns))
            for cause in some.causes
        ]
        content.insert(2, table(("cause", "model", "slow", "ordinary"), ranked, "Slow and ordinary", prose=(1,)))
    if behind := answer.batches():
        content.append(facts([("batch", text) for text in behind]))
    return page(title, *content, kind="Why", footer=str(answer.log.server.get("version", "")))
