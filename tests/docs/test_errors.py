"""Pages and headings that messages name are there."""

import re

from tests.docs.blocks import ROOT

_NAMED = re.compile(r"see (docs/[\w/-]+\.md)(?:#([\w-]+))?")


def test_messages_name_pages_and_headings_that_exist() -> None:
    named = {match for path in (ROOT / "src").rglob("*.py") for match in _NAMED.findall(path.read_text())}
    assert ("docs/troubleshooting.md", "at-the-start") in named
    for page, anchor in named:
        headings = re.findall(r"^#+ (.*)", (ROOT / page).read_text(), re.MULTILINE)
        assert anchor in {"", *(re.sub(r"[^\w-]", "", heading.lower().replace(" ", "-")) for heading in headings)}, page
