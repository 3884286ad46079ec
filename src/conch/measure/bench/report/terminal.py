"""A certificate in the terminal, or as plain text in a pipe. Legible from 40 columns."""

from collections.abc import Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from conch.measure.bench.measurement import Effect, Measurement, Note
from conch.measure.bench.report.certificate import AbComparison, Certificate, all_notes, target_line, verdict_lines
from conch.measure.bench.report.fact_tables import effect_table
from conch.measure.bench.report.level_columns import asked_percentiles, level_table, remarks
from conch.measure.bench.report.scaling import find_saturation

SEVERITY_STYLES = {"invalid": "bold red", "warning": "yellow", "info": "cyan"}
EFFECT_STYLES = {"better": "green", "worse": "bold red"}
# Notes that answer --find-max: they stand before those on the quality.
SEARCH_RESULTS = ("slo-max", "slo-not-met")
# Below this width, or where a row does not fit, a level is a list of lines.
_MIN_TABLE_COLUMNS = 60
_PADDING = 2
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if code != 10}


def print_certificate(certificate: Certificate, console: Console | None = None) -> None:
    """Print a certificate to stdout, or to the given console."""
    (console or Console(highlight=False)).print(Group(*_parts(certificate, console or Console())))


def levels_renderable(
    measurements: Sequence[Measurement], columns: int, percentiles: Sequence[str] = ()
) -> RenderableType:
    """Return the table of levels for a width: one table, several with parts of the columns, or lists."""
    titles, rows = level_table(measurements, percentiles)
    if columns < _MIN_TABLE_COLUMNS:
        return Group(*(_listed(titles, row) for row in rows))
    return Group(*(_table(titles, rows, part) for part in _split(titles, rows, columns)))


def _parts(certificate: Certificate, console: Console) -> Iterator[RenderableType]:
    yield plain_text(target_line(certificate.target), "bold")
    if inputs := certificate.settings.get("inputs"):
        yield plain_text(f"Sent: {inputs}", "dim")
    measurements = certificate.measurements
    if measurements:
        yield levels_renderable(measurements, console.width, asked_percentiles(certificate.settings))
    else:
        yield plain_text("Nothing was measured.")
    for remark in remarks(measurements):
        yield plain_text(remark, "dim")
    saturation = certificate.saturation or find_saturation(measurements)
    if saturation is not None:
        yield plain_text(saturation.message)
    for measurement in measurements:
        for message, count in measurement.errors[:3]:
            yield plain_text(f"{measurement.level.label}: {count:,} × {message}", "red")
    if certificate.ab is not None:
        yield from _ab_parts(certificate.ab, console.width)
    notes = all_notes(certificate)
    for note in notes:
        if note.code in SEARCH_RESULTS:
            yield plain_text(f"{note.message[0].upper()}{note.message[1:]}.", "bold")
    for note in notes:
        if note.code not in SEARCH_RESULTS:
            yield note_line(note)
    if measurements:
        yield plain_text(verdict_lines(certificate)[0], "bold")


def effects_renderable(effects: Sequence[Effect], columns: int) -> RenderableType:
    """Return the table of effects for a width."""
    table = effect_table(effects)
    styles = [{table.head.index("Verdict"): EFFECT_STYLES.get(effect.verdict, "")} for effect in effects]
    if columns < _MIN_TABLE_COLUMNS:
        return Group(*(_listed(table.head, row) for row in table.rows))
    return Group(*(_table(table.head, table.rows, part, styles) for part in _split(table.head, table.rows, columns, 2)))


def note_line(note: Note) -> Text:
    """Return a note with its severity."""
    return plain_text(f"{note.severity}: ", SEVERITY_STYLES.get(note.severity, "")).append_text(
        plain_text(note.message)
    )


def _ab_parts(ab: AbComparison, columns: int) -> Iterator[RenderableType]:
    yield plain_text(f"\nCompared with {target_line(ab.baseline)}:")
    yield effects_renderable(ab.effects, columns)
    if ab.verdict:
        yield plain_text(ab.verdict, "bold")


def _split(titles: Sequence[str], rows: Sequence[Sequence[str]], columns: int, keys: int = 1) -> Iterator[list[int]]:
    """Yield the indexes of columns that fit beside each other. The first `keys` columns are in each part."""
    widths = [
        max(cell_len(cell) for cell in (title, *cells)) + _PADDING for title, *cells in zip(titles, *rows, strict=True)
    ]
    part = list(range(keys))
    for index in range(keys, len(widths)):
        if sum(widths[column] for column in part) + widths[index] > columns and len(part) > keys:
            yield part
            part = list(range(keys))
        part.append(index)
    yield part


def _table(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    part: Sequence[int],
    styles: Sequence[dict[int, str]] = (),
) -> Table:
    """Return a table of some of the columns. `styles` has for each row the styles of cells by column."""
    table = Table(
        box=SIMPLE_HEAD, pad_edge=False, padding=(0, _PADDING - 1, 0, 0), show_edge=False, header_style="bold"
    )
    for index in part:
        table.add_column(plain_text(titles[index]), justify="right", no_wrap=True)
    for number, row in enumerate(rows):
        style = styles[number] if styles else {}
        table.add_row(*(plain_text(row[index], style.get(index, "")) for index in part))
    return table


def _listed(titles: Sequence[str], row: Sequence[str]) -> Table:
    table = Table.grid(padding=(0, _PADDING, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(justify="right")
    table.add_row(plain_text(titles[0], "bold"), plain_text(row[0], "bold"))
    for title, cell in list(zip(titles, row, strict=True))[1:]:
        table.add_row(plain_text(title), plain_text(cell))
    table.add_row("", "")
    return table


def plain_text(content: str, style: str = "") -> Text:
    """Return a text whose control characters, from names and messages of servers, are written out."""
    return Text(content.translate(_CONTROLS), style)
