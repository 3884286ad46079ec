"""Markdown for pull requests."""

import re
from dataclasses import replace

from conch.measure.bench.report.markdown import to_markdown
from tests.measure.bench.report.samples import HOSTILE, ab_certificate, certificate, hostile_certificate


def test_the_table_of_levels_is_there() -> None:
    text = to_markdown(ab_certificate())
    assert "| Concurrency | Requests | Wall | Req/s | P50 |" in text
    assert "```bash\nconch bench http://127.0.0.1:8000 --concurrency 1,4,16\n```" in text
    columns = {line.count("|") for line in text.split("\n\n")[3].splitlines()}
    assert len(columns) == 1


def test_the_verdict_is_that_of_the_terminal() -> None:
    """Runs have no words for it; it follows from their notes."""
    run = replace(certificate(1), verdict="")
    assert "\n\n**Usable with care: see the notes.**\n\n" in to_markdown(run)
    assert "**Comparable: no note questions these figures.**" in to_markdown(replace(run, notes=()))
    assert "Usable" not in to_markdown(replace(run, measurements=()))


def test_no_name_becomes_markup() -> None:
    text = to_markdown(hostile_certificate())
    outside = re.sub(r"(`{3,})bash\n.*?\n\1", "", text, flags=re.DOTALL)
    assert HOSTILE[:9] not in outside
    assert set(re.findall(r"</?[a-z]+", outside)) == {"<details", "</details", "<summary", "</summary"}
    assert "\x1b" not in outside
