"""A certificate in the terminal, or as plain text in a pipe. Legible from 40 columns."""

from collections.abc import Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from conch.bench.measurement import Measurement, Note
from conch.bench.report.certificate import AbComparison, Certificate, CertifiedTarget, all_notes
from conch.bench.report.level_columns import level_table, scarce_percentiles
from conch.bench.report.quantity import format_change
from conch.bench.report.scaling import find_saturation

SEVERITY_STYLES = {"invalid": "bold red", "warning": "yellow", "info": "cyan"}
EFFECT_STYLES = {"better": "green", "worse": "bold red"}
# Below this width, or where a row does not fit, a level is a list of lines.
_MIN_TABLE_COLUMNS = 60
_PADDING = 2


def print_certificate(certificate: Certificate, console: Console | None = None) -> None:
    """Print a certificate to stdout, or to the given console."""
    (console or Console(highlight=False)).print(Group(*_parts(certificate, console or Console())))


def levels_renderable(measurements: Sequence[Measurement], columns: int) -> RenderableType:
    """Return the table of levels for a width: one table, several with parts of the columns, or lists."""
    titles, rows = level_table(measurements)
    if columns < _MIN_TABLE_COLUMNS:
        return Group(*(_listed(titles, row) for row in rows))
    return Group(*(_table(titles, rows, part) for part in _split(titles, rows, columns)))


def target_line(target: CertifiedTarget) -> str:
    """Return what was measured, in one line."""
    model = f"{target.model} version {target.model_version}" if target.model_version else target.model
    server = f"{target.server_name} {target.server_version}".strip()
    return " · ".join(each for each in (model, target.url, target.protocol, server) if each)


def _parts(certificate: Certificate, console: Console) -> Iterator[RenderableType]:
    yield Text(target_line(certificate.target), "bold")
    measurements = certificate.measurements
    if measurements:
        yield levels_renderable(measurements, console.width)
    else:
        yield Text("Nothing was measured.")
    if scarce := scarce_percentiles(measurements):
        yield Text(scarce, "dim")
    tokens = next((each.tokens for each in measurements if each.tokens), None)
    if tokens is not None and tokens.source != "usage":
        yield Text(f"Tokens are counted by {tokens.source}: the server does not report them.", "dim")
    saturation = certificate.saturation or find_saturation(measurements)
    if saturation is not None:
        yield Text(saturation.message)
    for measurement in measurements:
        for message, count in measurement.errors[:3]:
            yield Text(f"{measurement.level.label}: {count:,} × {message}", "red")
    if certificate.ab is not None:
        yield from _ab_parts(certificate.ab)
    for note in all_notes(certificate):
        yield note_line(note)
    if certificate.verdict:
        yield Text(certificate.verdict, "bold")


def note_line(note: Note) -> Text:
    """Return a note with its severity."""
    return Text.assemble((f"{note.severity}: ", SEVERITY_STYLES.get(note.severity, "")), note.message)


def _ab_parts(ab: AbComparison) -> Iterator[RenderableType]:
    yield Text(f"\nCompared with {target_line(ab.baseline)}:")
    for effect in ab.effects:
        change = format_change(effect.change)
        level = f"{effect.level}: " if len({each.level for each in ab.effects}) > 1 else ""
        style = EFFECT_STYLES.get(effect.verdict, "")
        yield Text.assemble(f"  {level}{effect.quantity} {change} ", (effect.verdict, style))
    if ab.verdict:
        yield Text(ab.verdict, "bold")


def _split(titles: Sequence[str], rows: Sequence[Sequence[str]], columns: int) -> Iterator[list[int]]:
    """Yield the indexes of columns that fit beside each other. The level is in each part."""
    widths = [max(cell_len(cell) for cell in (title, *cells)) for title, *cells in zip(titles, *rows, strict=True)]
    part, used = [0], widths[0] + _PADDING
    for index, width in list(enumerate(widths))[1:]:
        if used + width + _PADDING > columns and len(part) > 1:
            yield part
            part, used = [0], widths[0] + _PADDING
        part.append(index)
        used += width + _PADDING
    yield part


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]], part: Sequence[int]) -> Table:
    table = Table(
        box=SIMPLE_HEAD, pad_edge=False, padding=(0, _PADDING - 1, 0, 0), show_edge=False, header_style="bold"
    )
    for index in part:
        table.add_column(Text(titles[index]), justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(row[index]) for index in part))
    return table


def _listed(titles: Sequence[str], row: Sequence[str]) -> Table:
    table = Table.grid(padding=(0, _PADDING, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(justify="right")
    table.add_row(Text(titles[0], "bold"), Text(row[0], "bold"))
    for title, cell in list(zip(titles, row, strict=True))[1:]:
        table.add_row(Text(title), Text(cell))
    table.add_row("", "")
    return table
