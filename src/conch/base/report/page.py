"""The page of a report and its parts: one file in UTF-8 that refers to nothing outside, with texts escaped."""

import base64
import hashlib
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from importlib.resources import files

from markupsafe import Markup, escape

Content = str | Iterable[str]
"""Text, which is escaped, or `Markup`, which is not."""


def tag(name: str, /, *content: Content, **attributes: str | float | None) -> Markup:
    """Return an element. `class_` is the attribute `class`, `text_anchor` is `text-anchor`; None leaves one out."""
    head = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_attribute(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    inner = "".join(escape(item) if isinstance(item, str) else "".join(map(escape, item)) for item in content)
    return Markup(f"<{name}{head}>{inner}</{name}>")  # noqa: S704 attributes and content are escaped


def page(title: str, *content: Content, kind: str = "", data: Markup | None = None, footer: str = "") -> str:
    """Return a page with a heading; `kind` is the line above it. `data` is an element that browsers do not show."""
    style = stylesheet()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    head = Markup(
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'sha256-{}'\">\n"
        "<title>{}</title>\n<style>{}</style>\n</head>\n"
    ).format(digest, title, Markup(style))  # noqa: S704 the package's own file
    header = tag("header", tag("p", kind, class_="kind") if kind else "", tag("h1", title))
    foot = tag("footer", footer) if footer else ""
    return f"{head}{tag('body', header, tag('main', *content), foot, data or '')}\n</html>\n"


def verdict(lines: Sequence[str], severity: str = "") -> Markup:
    """Return the result in a box. `severity` is "invalid", "warning" or "", which is good."""
    box = f"verdict {severity}".strip()
    return tag("div", (tag("p", line) for line in lines), class_=box, role="note", aria_label="Verdict")


def figures(values: Iterable[tuple[str, str, str]]) -> Markup:
    """Return key figures: name, value and remark."""
    boxes = [tag("div", tag("dt", name), tag("dd", value, tag("small", remark))) for name, value, remark in values]
    return tag("dl", boxes, class_="figures") if boxes else Markup()


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    label: str = "",
    *,
    prose: Collection[int] = (),
    marked: Collection[int] = (),
) -> Markup:
    """Return a table that scrolls where it is too wide: the first column is a heading, the others are numbers.

    `prose` are the columns with text that wraps; `marked` are the rows in bold.
    """

    def row(number: int, cells: Sequence[str]) -> Markup:
        others = [
            tag("td", cell, class_="prose" if column in prose else None) for column, cell in enumerate(cells[1:], 1)
        ]
        return tag("tr", tag("th", cells[0], scope="row"), others, class_="marked" if number in marked else None)

    titles = [
        tag("th", title, scope="col", class_="prose" if column in prose else None) for column, title in enumerate(head)
    ]
    body = tag("tbody", (row(number, cells) for number, cells in enumerate(rows)))
    grid = tag("table", tag("thead", tag("tr", titles)) if head else "", body)
    return tag("div", grid, class_="scroll", tabindex="0", role="region", aria_label=label or "Table")


def facts(rows: Iterable[Sequence[str]]) -> Markup:
    """Return names and values as a table of two columns."""
    return tag("table", (tag("tr", tag("th", row[0], scope="row"), tag("td", row[1])) for row in rows), class_="facts")


def charts(content: Iterable[Markup]) -> Markup:
    """Return charts in as many columns as there is room for."""
    return tag("div", content, class_="charts")


def embedded_json(text: str, name: str, **attributes: str | None) -> Markup:
    """Return JSON, or its base64, as data of a page."""
    safe = Markup(text.replace("<", "\\u003c"))  # noqa: S704 it cannot end its element
    return tag("script", safe, type="application/json", id=name, **attributes)


@cache
def stylesheet() -> str:
    """Return the style of pages and charts."""
    return (files("conch.base.report") / "report.css").read_text(encoding="utf-8")


def _attribute(value: str | float) -> Markup:
    return escape(f"{round(value, 2):g}" if isinstance(value, float) else value)
