"""The store of responses is bounded by number, bytes and time; of several owners the largest gives way."""

from pathlib import Path

import pytest

from conch.base.errors import NotFound
from conch.protocols.access.api_keys import ApiKeys
from conch.protocols.http.message import HttpRequest
from conch.server.frontends.openai.response_store import (
    LIFETIME_S,
    MAX_RESPONSE_BYTES,
    ResponseStore,
    StoredResponse,
    owner_of,
)
from conch.server.frontends.request_headers import Tenants


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def response(owner: str = "a", size: int = 10) -> StoredResponse:
    return StoredResponse(owner, b"[]", b" " * size, document=b"{}")


def kept(store: ResponseStore, *ids: str, owner: str = "a") -> list[str]:
    kept = []
    for response_id in ids:
        try:
            store.find(response_id, owner)
        except NotFound:
            continue
        kept.append(response_id)
    return kept


def test_the_oldest_goes_first() -> None:
    store = ResponseStore(2)
    for name in "123":
        store.add(name, response())
    assert kept(store, "1", "2", "3") == ["2", "3"]
    store.remove("2")
    assert kept(store, "2", "3") == ["3"]


def test_nothing_is_kept_by_default() -> None:
    store = ResponseStore(0)
    store.add("1", response())
    assert kept(store, "1") == []


def test_one_owner_cannot_displace_another() -> None:
    store = ResponseStore(4)
    store.add("b", response("b"))
    for number in range(100):
        store.add(str(number), response())
    assert kept(store, "b", owner="b") == ["b"]
    assert kept(store, *map(str, range(100))) == ["97", "98", "99"]


def test_bytes_are_bounded() -> None:
    store = ResponseStore(100, max_bytes=10_000)
    for name in "123456":
        store.add(name, response(size=2000))
    assert kept(store, *"123456") == ["4", "5", "6"]
    store.end("5", b"{}", b" " * (MAX_RESPONSE_BYTES + 1))
    assert kept(store, *"456") == ["4", "6"]


def test_responses_expire() -> None:
    clock = Clock()
    store = ResponseStore(10, clock=clock)
    store.add("1", response())
    clock.now = 1.0
    store.add("2", response())
    clock.now = LIFETIME_S
    assert kept(store, "1", "2") == ["2"]


def test_others_find_nothing() -> None:
    store = ResponseStore(10)
    store.add("1", response("a"))
    with pytest.raises(NotFound, match="Response with id '1' not found"):
        store.find("1", "b")
    store.end("2", b"{}", b"[]")  # was removed meanwhile
    assert kept(store, "1", "2") == ["1"]


def test_a_response_belongs_to_the_key_not_to_its_line(tmp_path: Path) -> None:
    path = tmp_path / "keys"

    def owner(key: str, tenant: str = "") -> str:
        headers = [(b"authorization", f"Bearer {key}".encode()), (b"x-tenant", tenant.encode())]
        return owner_of(keys, Tenants("x-tenant", keys), HttpRequest(b"POST", "/v1/responses", headers))

    keys = ApiKeys(openai_path=str(path))
    path.write_text("first\nsecond\n")
    keys.load()
    before = owner("second")
    assert len({before, owner("first"), owner("second", "a"), owner("first", "a")}) == 4
    path.write_text("second\nthird\n")
    keys.load()
    assert owner("second") == before
    assert owner("third") != before
