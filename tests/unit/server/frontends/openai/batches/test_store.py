"""The folder of files and batches."""

import time
from pathlib import Path

import pytest

from conch.base.errors import ConfigError, InvalidRequest, NotFound, TooLarge
from conch.machine.condition import CautiousClock
from conch.server.frontends.openai.batches import store as store_module
from conch.server.frontends.openai.batches.store import BatchStore, RequestBatch


def opened(folder: Path, max_bytes: int = 1000) -> BatchStore:
    store = BatchStore(folder, max_bytes)
    store.open()
    return store


def test_a_folder_belongs_to_one_server(tmp_path: Path) -> None:
    first = opened(tmp_path)
    with pytest.raises(ConfigError, match="another server"):
        opened(tmp_path)
    first.close()
    opened(tmp_path).close()


def test_a_restart_finds_files_and_removes_what_it_does_not_know(tmp_path: Path) -> None:
    store = opened(tmp_path / "new")
    file = store.add_file("me", "lines.jsonl", "batch", b"x" * 10, None)
    batch = store.add_batch("me", file, "/v1/completions", "24h", 3600, {})
    store.append(batch, batch.output_id, b'{"id":"batch_req_x-7"}\n{"id":"batch_req_x-9"}\n{"id":"torn')
    store.close()
    (tmp_path / "new" / "file-0.part").write_bytes(b"x")
    again = opened(tmp_path / "new")
    assert again.file(file.id, "me") == file
    assert [*again.results(again.batch(batch.id, "me"))] == [(7, True), (9, True)]
    assert again.used.total() == 10 + 2 * len(b'{"id":"batch_req_x-7"}\n')
    assert not (tmp_path / "new" / "file-0.part").exists()
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "new").iterdir()} == {0o600}
    for owner in ("", "other"):
        with pytest.raises(NotFound):
            again.file(file.id, owner)
        with pytest.raises(NotFound):
            again.batch(batch.id, owner)
    with pytest.raises(InvalidRequest, match="has not ended"):
        again.delete_file(file)
    again.close()


def test_the_contents_are_bounded(tmp_path: Path) -> None:
    store = opened(tmp_path)
    file = store.add_file("", "a", "batch", b"x" * 900, None)
    batch = store.add_batch("", file, "/v1/completions", "24h", 3600, {})
    with pytest.raises(TooLarge, match="--batch-max-bytes"):
        store.add_file("", "b", "batch", b"x" * 101, None)
    with pytest.raises(TooLarge):
        store.append(batch, batch.output_id, b"x" * 101)
    batch.become("failed")
    store.delete_file(file)
    assert (store.used.total(), store.files) == (0, {})
    store.close()


def test_files_expire_but_not_by_a_step_of_the_clock(tmp_path: Path) -> None:
    store = opened(tmp_path)
    wall, elapsed = [time.time()], [0.0]
    store.clock = CautiousClock(lambda: wall[0], lambda: elapsed[0])
    file = store.add_file("", "a", "batch", b"x", 7200)
    wall[0] += 86_400
    store.delete_expired()
    assert store.file(file.id, "") is file
    elapsed[0] += 7200
    with pytest.raises(NotFound):
        store.file(file.id, "")
    store.delete_expired()
    assert (store.used.total(), store.files) == (0, {})
    store.close()


def test_a_tenant_does_not_take_the_room_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "MAX_BATCHES", 5)
    monkeypatch.setattr(store_module, "MAX_ACTIVE", 3)
    store = opened(tmp_path)

    def begun(owner: str) -> RequestBatch:
        file = store.add_file(owner, "a", "batch", b"x", None)
        return store.add_batch(owner, file, "/v1/completions", "24h", 86_400, {})

    other = begun("other")
    other.become("completed")
    many = [begun("many") for _ in range(3)]
    with pytest.raises(InvalidRequest, match="3 batches that have not ended"):
        begun("many")
    for batch in many:
        batch.become("failed")
    many.append(begun("many"))
    assert len(store.batches) == 5
    latest = begun("other")
    assert [batch.id for batch in (other, *many[1:], latest)] == list(store.batches)
    store.close()
    assert list(opened(tmp_path).batches) == sorted(store.batches)


def test_a_damaged_description_is_named(tmp_path: Path) -> None:
    (tmp_path / f"file-{'0' * 32}.json").write_text("{}")
    with pytest.raises(ConfigError, match="is not valid"):
        opened(tmp_path)
