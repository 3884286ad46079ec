"""Changes of the files that `conch run --reload` waits for."""

from pathlib import Path

from conch.clients.run.reload import files_of


def test_modules_beside_code_count_and_locks_of_editors_are_harmless(tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    assert files_of(str(app)) == files_of("hf://team/model") == ()
    app.write_text("")
    (tmp_path / "notes.txt").write_text("")
    before = files_of(str(app))
    assert [path for path, *_ in before] == [str(app)]
    (tmp_path / ".#app.py").symlink_to("user@host.1:2")  # of Emacs, to nothing
    (tmp_path / "module.py").write_text("")
    assert [Path(path).name for path, *_ in files_of(str(app))] == [".#app.py", "app.py", "module.py"]
    assert files_of(str(tmp_path)) != ()
