"""The registry of degradations: complete, named, and reported somewhere."""

import re
from pathlib import Path

from tools.degradations_page import PAGE, page

from conch.domain.degradations import Degradation, reasons

SOURCES = Path(__file__).parents[3] / "src/conch"


def test_each_reason_has_one_sentence_of_costs_and_a_cure() -> None:
    assert len(reasons()) >= 25
    for reason in reasons().values():
        assert re.fullmatch(r"[a-z0-9_]+", reason.id)
        assert re.fullmatch(r"[A-Z/][^\n]*[^.]\.", reason.costs), reason.id
        assert reason.cure, reason.id
        assert not reason.cure.endswith("."), reason.id


def test_each_reason_is_reported_by_the_server() -> None:
    code = "".join(path.read_text() for path in (SOURCES / "server").rglob("*.py"))
    code += (SOURCES / "domain/config/resolve.py").read_text()
    assert [name for name in reasons() if f'"{name}"' not in code] == []


def test_text_has_the_detail_and_the_cure() -> None:
    text = str(Degradation("cache_off", "response_cache of model 'm' has no effect", "m"))
    assert text == "response_cache of model 'm' has no effect; start the server with --cache-config=local,size=<bytes>"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run `make docs`"
