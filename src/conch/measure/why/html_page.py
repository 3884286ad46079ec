"""An explanation as one HTML page."""

from conch.base.report.page import facts, page, table, tag, verdict
from conch.base.report.waterfall import draw_waterfall, duration
from conch.domain.causes.cause import CAUSES
from conch.measure.why.answer import MARKS, Explanation


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
