"""A certificate in GitHub's Markdown, for pull requests and summaries of jobs."""

import re
from collections.abc import Sequence

from conch.measure.bench.report.certificate import Certificate, all_notes, shell_line, target_line, verdict_lines
from conch.measure.bench.report.fact_tables import effect_table, error_table, settings_table
from conch.measure.bench.report.level_columns import asked_percentiles, level_table, remarks

_SPECIAL = re.compile(r"[\\`*_\[\]<>|&#~$@]")
_BADGES = {"invalid": "❌", "warning": "⚠️"}


def to_markdown(certificate: Certificate) -> str:
    """Return a certificate as Markdown."""
    titles, rows = level_table(certificate.measurements, asked_percentiles(certificate.settings))
    parts = [
        f"### Benchmark of {markdown_text(certificate.target.model or certificate.target.url)}",
        markdown_text(target_line(certificate.target)),
        f"**{markdown_text(verdict_lines(certificate)[0])}**" if certificate.measurements else "",
        markdown_table(titles, rows),
        *(markdown_text(remark) for remark in remarks(certificate.measurements)),
        markdown_text(certificate.saturation.message) if certificate.saturation else "",
    ]
    tables = [effect_table(certificate.ab.effects)] if certificate.ab else []
    tables.append(error_table(certificate.measurements))
    parts += [markdown_table(table.head, table.rows) for table in tables if table.rows]
    notes = all_notes(certificate)
    parts.append("\n".join(f"- {_BADGES.get(note.severity, 'ℹ️')} {markdown_text(note.message)}" for note in notes))
    machine = certificate.environment
    parts += [
        f"<details><summary>How to reproduce</summary>\n\n{_code(shell_line(certificate.command))}\n",
        markdown_table(("Setting", "Value"), settings_table(certificate).rows),
        markdown_text(f"Client: {machine.cpu_model}, {machine.usable_cpus} CPUs, {machine.os}, Conch {machine.conch}"),
        "</details>",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def markdown_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose columns but the first are aligned to the right."""
    lines = [titles, [":--", *["--:"] * (len(titles) - 1)]]
    cells = [[markdown_text(cell) for cell in row] for row in rows]
    return "\n".join(
        f"| {' | '.join(row)} |" for row in (*([markdown_text(line) for line in lines[0]], lines[1]), *cells)
    )


def markdown_text(text: str) -> str:
    """Return a text in one line in which nothing is markup, a mention or a reference."""
    line = " ".join("".join(character if character.isprintable() else " " for character in text).split())
    return _SPECIAL.sub(lambda match: f"&#{ord(match[0])};", line)


def _code(line: str) -> str:
    fence = "`" * max(3, 1 + max(map(len, re.findall(r"`+", line)), default=0))
    return f"{fence}bash\n{line}\n{fence}"
