"""Atomic replacement of files and folders."""

from pathlib import Path

import pytest

from conch.base.errors import ConfigError, Unavailable
from conch.base.files.atomic import atomic_replace, replace_file


def put(target: Path, text: str, *, replace: bool = False) -> None:
    with atomic_replace(target, replace=replace) as folder:
        assert folder.name == target.name
        (folder / "file").write_text(text)


def fail(target: Path, error: BaseException) -> None:
    with atomic_replace(target, replace=True) as folder:
        (folder / "file").write_text("new")
        raise error


def everything(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_the_folder_appears_at_the_end(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "repository" / "m"
    with atomic_replace(target) as folder:
        (folder / "file").write_text("new")
        assert not target.exists()
        assert [path.name[0] for path in target.parent.iterdir()] == ["."]
    assert everything(tmp_path) == {"deep/repository/m/file": "new"}


def test_an_existing_target_is_replaced_on_request(tmp_path: Path) -> None:
    target = tmp_path / "m"
    put(target, "old")
    with pytest.raises(ConfigError, match="exists already"):
        put(target, "new")
    assert everything(tmp_path) == {"m/file": "old"}
    put(target, "new", replace=True)
    assert everything(tmp_path) == {"m/file": "new"}
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(ConfigError, match="exists already"):
        put(tmp_path / "link", "new")
    put(tmp_path / "link", "new", replace=True)
    assert everything(tmp_path) == {"m/file": "new", "link/file": "new"}


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device"), ConfigError("no")])
def test_a_failure_leaves_nothing_behind(tmp_path: Path, error: BaseException) -> None:
    put(tmp_path / "m", "old")
    expected = Unavailable if isinstance(error, OSError) else type(error)
    for target in (tmp_path / "m", tmp_path / "made" / "repository" / "m"):
        with pytest.raises(expected) as caught:
            fail(target, error)
        if isinstance(error, OSError):
            assert str(caught.value) == f"'{target}' cannot be written: No space left on device"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "m"]
    assert everything(tmp_path) == {"m/file": "old"}


def test_a_target_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match=r"file/m' cannot be written"):
        put(tmp_path / "file" / "m", "new")


def test_a_file_keeps_its_mode_and_a_new_one_gets_the_given_mode(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    replace_file(path, b"one", 0o600)
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    replace_file(path, b"two", 0o600)
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"two", 0o644)
    assert list(tmp_path.iterdir()) == [path]
