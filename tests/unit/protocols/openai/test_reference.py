"""docs/language-models.md lists the fields that are read, and no other."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from conch.domain.tensor import Buffer
from conch.protocols.openai.embeddings import read_embedding
from conch.protocols.openai.fields import Fields
from conch.protocols.openai.requests import read_chat, read_completion

PAGE = Path(__file__).parents[4] / "docs" / "language-models.md"
MESSAGES = [{"role": "user", "content": "hi"}]


def listed(heading: str) -> set[str]:
    """Return the names in the first column of the table under a heading."""
    (section,) = re.findall(
        rf"^### {heading}\n(.*?)^(?:#{{1,3}} |\Z)", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    rows = re.findall(r"^\| (`.*?`) \|", section, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


@pytest.mark.parametrize(
    ("read", "body", "headings"),
    [
        (read_chat, {"messages": MESSAGES}, ("Common fields", "Chat completion fields")),
        (read_completion, {"prompt": "hi"}, ("Common fields", "Completion fields")),
        (read_embedding, {"input": "hi"}, ("Embeddings",)),
    ],
)
def test_the_page_lists_the_fields_of_the_code(
    monkeypatch: pytest.MonkeyPatch,
    read: Callable[[Buffer], object],
    body: dict[str, Any],
    headings: tuple[str, ...],
) -> None:
    taken: set[str] = set()
    plain = Fields.take

    def take(self: Fields, name: str) -> Any:
        if not self._prefix:
            taken.add(name)
        return plain(self, name)

    monkeypatch.setattr(Fields, "take", take)
    read(orjson.dumps({"model": "m", **body}))
    assert taken == set().union(*map(listed, headings))
