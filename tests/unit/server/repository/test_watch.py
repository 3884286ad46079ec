"""Fingerprints of models and changes between snapshots."""

import os
from pathlib import Path

import pytest

from conch.server.repository import watch
from conch.server.repository.store import Repository
from conch.server.repository.watch import Changes, changes, fingerprint, settled, sources


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "models" / "m"
    (directory / "1").mkdir(parents=True)
    (directory / "1" / "model.py").write_text("x = 1")
    (directory / "config.pbtxt").write_text("")
    return directory


def test_nothing_changed(model: Path) -> None:
    assert fingerprint(model) == fingerprint(model) != ()


def test_no_model_has_no_fingerprint(tmp_path: Path) -> None:
    assert fingerprint(tmp_path / "nowhere") == ()


@pytest.mark.parametrize(
    "name", ["__pycache__/model.cpython-311.pyc", "model.pyc", ".model.py.swp", "model.py~", ".#model.py", "4913"]
)
def test_files_of_interpreters_and_editors_are_ignored(model: Path, name: str) -> None:
    before = fingerprint(model)
    path = model / "1" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("")
    assert fingerprint(model) == before


def test_changes_that_count(model: Path) -> None:
    seen = [fingerprint(model)]
    (model / "1" / "model.py").write_text("x = 10")
    seen.append(fingerprint(model))
    os.utime(model / "1" / "model.py", ns=(1, 1))
    seen.append(fingerprint(model))
    (model / "2").mkdir()
    seen.append(fingerprint(model))
    (model / "2").rename(model / "3")
    seen.append(fingerprint(model))
    (model / "config.pbtxt").unlink()
    seen.append(fingerprint(model))
    (model / "1" / "weights" / "deep").mkdir(parents=True)
    (model / "1" / "weights" / "deep" / "w").write_text("")
    seen.append(fingerprint(model))
    assert len(set(seen)) == len(seen)


def test_links_are_followed_but_not_in_circles(model: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "model.py").write_text("")
    (model / "2").symlink_to(data)
    (model / "2" / "back").symlink_to(model)
    (model / "2" / "gone").symlink_to(tmp_path / "nowhere")
    before = fingerprint(model)
    (data / "model.py").write_text("x = 1")
    assert fingerprint(model) != before


def test_links_that_multiply_folders_end(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "MAX_ENTRIES", 500)
    for name in ("a", "b"):
        folder = model / name
        for _ in range(12):  # each level doubles what is below
            folder.mkdir()
            folder = folder / "x"
    for depth in range(12):
        folder = model / "b" / "/".join("x" * depth)
        (folder / "y").symlink_to(folder / "x")
    (model / "a" / "z").symlink_to(model / "b")
    (model / "b" / "z").symlink_to(model / "a")
    assert len(fingerprint(model)) == 500
    assert fingerprint(model) == fingerprint(model)


def test_changes_between_two_snapshots() -> None:
    before = {"same": (("a", 1, 1),), "touched": (("a", 1, 1),), "gone": ()}
    now = {"same": (("a", 1, 1),), "touched": (("a", 2, 1),), "new": ()}
    assert changes(before, now) == Changes(added=("new",), changed=("touched",), removed=("gone",))
    assert changes(before, now)
    assert not changes(now, now)


def test_a_snapshot_is_of_all_models_broken_ones_included(model: Path) -> None:
    root = model.parent
    (root / "broken").mkdir()
    (root / "broken" / "config.pbtxt").write_text("no { configuration")
    assert Repository([root]).snapshot() == {"m": fingerprint(model), "broken": fingerprint(root / "broken")}


def test_a_model_that_is_being_written_keeps_its_previous_state() -> None:
    old, half, whole = ((("a", number, number),) for number in (1, 2, 3))
    seen = {"still": old, "written": old, "moved": old, "gone": old}
    earlier = {"still": old, "written": whole, "moved": half, "new": half, "complete": whole}
    later = {"still": old, "written": whole, "moved": whole, "new": whole, "complete": whole}
    state = settled(seen, earlier, later)
    assert state == {"still": old, "written": whole, "moved": old, "complete": whole}
    assert changes(seen, state) == Changes(added=("complete",), changed=("written",), removed=("gone",))


def test_a_model_that_is_missing_in_one_snapshot_is_not_removed() -> None:
    stamps = (("a", 1, 1),)
    assert settled({"m": stamps}, {}, {"m": stamps}) == {"m": stamps}


def test_files_written_by_a_model_are_not_its_sources(model: Path) -> None:
    before = sources(fingerprint(model))
    (model / "1" / "compiled.cache").write_text("")
    (model / "1" / "run.log").write_text("")
    assert sources(fingerprint(model)) == before
    (model / "1" / "helper.py").write_text("")
    assert sources(fingerprint(model)) != before
