"""Pages and tables: whole, and escaped."""

from html.parser import HTMLParser

import pytest
from markupsafe import Markup

from conch.base.report.page import embedded_json, facts, figures, page, table, tag, verdict

HOSTILE = '</script><img src=x onerror="alert(1)">&'


class Tags(HTMLParser):
    """Collects the names of elements, and checks that they are closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        if tag != "meta":
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag


def test_attributes_and_content_are_escaped() -> None:
    text = tag("p", HOSTILE, [HOSTILE, Markup("<br>")], class_=HOSTILE, text_anchor=None, x=1.23456)
    assert "<img" not in text
    assert text.count("&lt;img") == 3
    assert "<br>" in text
    assert 'x="1.23"' in text
    assert "text-anchor" not in text


def test_a_page_is_whole_and_refers_to_nothing_outside() -> None:
    parts = [
        verdict([HOSTILE], "invalid"),
        figures([(HOSTILE, HOSTILE, HOSTILE)]),
        table((HOSTILE, "b"), [(HOSTILE, HOSTILE)], HOSTILE, prose=(1,), marked=(0,)),
        facts([(HOSTILE, HOSTILE)]),
    ]
    text = page(HOSTILE, *parts, kind=HOSTILE, footer=HOSTILE, data=embedded_json(f'"{HOSTILE}"', "data"))
    names = Tags(text).names
    assert not {"img", "link", "iframe"} & set(names)
    assert names.count("script") == 1
    assert "prefers-color-scheme: dark" in text
    assert "url(" not in text
    assert "default-src 'none'; style-src 'sha256-" in text


@pytest.mark.parametrize("rows", [[], [("a",)]])
def test_a_table_of_few_cells(rows: list[tuple[str, ...]]) -> None:
    assert Tags(table((), rows)).names.count("tr") == len(rows)
