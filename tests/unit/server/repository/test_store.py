"""Local repositories: listing, reading and errors."""

from pathlib import Path

import pytest

from conch.base.errors import ConfigError, NotFound
from conch.server.repository.override import Override
from conch.server.repository.store import Repository


def put(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


CONFIG = 'backend: "python" max_batch_size: 4'


def test_models_are_the_visible_folders(tmp_path: Path) -> None:
    put(tmp_path, {"b/config.pbtxt": CONFIG, "a/1/model.py": "", ".git/config": "", "README.md": ""})
    assert Repository([tmp_path]).names() == ["a", "b"]


def test_models_of_several_roots(tmp_path: Path) -> None:
    put(tmp_path, {"one/a/1/model.py": "", "two/b/1/model.py": ""})
    repository = Repository([tmp_path / "one", tmp_path / "two"])
    assert repository.names() == ["a", "b"]
    assert repository.read("b").directory == tmp_path / "two" / "b"


def test_a_model_in_two_roots_is_ambiguous(tmp_path: Path) -> None:
    put(tmp_path, {"one/a/1/model.py": "", "two/a/1/model.py": ""})
    repository = Repository([tmp_path / "one", tmp_path / "two"])
    assert repository.names() == ["a"]
    with pytest.raises(ConfigError, match=r"model 'a' is ambiguous: it is in .*one and in .*two"):
        repository.read("a")


def test_a_missing_root(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model repository '.*nowhere' cannot be read: No such file or directory"):
        Repository([tmp_path / "nowhere"]).names()


def test_reading_a_model(tmp_path: Path) -> None:
    put(tmp_path, {"m/config.pbtxt": CONFIG, "m/1/model.py": "", "m/12/model.py": "", "m/03/x": "", "m/docs/x": ""})
    files = Repository([tmp_path]).read("m")
    assert (files.name, files.directory, files.temporary) == ("m", tmp_path / "m", False)
    assert files.config_source == str(tmp_path / "m" / "config.pbtxt")
    assert files.versions_on_disk == (1, 12)
    assert (files.config.name, files.config.backend, files.config.max_batch_size) == ("m", "python", 4)
    assert files.document["name"] == "m"
    assert files.document["default_model_filename"] == "model.py"


def test_without_a_configuration_the_files_determine_the_backend(tmp_path: Path) -> None:
    put(tmp_path, {"m/3/model.onnx": "", "m/20/model.py": ""})
    files = Repository([tmp_path]).read("m")
    assert files.config_source == str(tmp_path / "m")
    assert (files.config.backend, files.config.platform) == ("onnxruntime", "onnxruntime_onnx")


def test_a_configuration_can_be_required(tmp_path: Path) -> None:
    put(tmp_path, {"m/1/model.onnx": ""})
    with pytest.raises(ConfigError, match=r"model 'm' has no config\.pbtxt"):
        Repository([tmp_path], auto_complete=False).read("m")


def test_a_named_configuration_takes_precedence(tmp_path: Path) -> None:
    put(tmp_path, {"m/config.pbtxt": CONFIG, "m/configs/gpu.pbtxt": 'backend: "python" max_batch_size: 64'})
    assert Repository([tmp_path], config_name="gpu").read("m").config.max_batch_size == 64
    assert Repository([tmp_path], config_name="other").read("m").config.max_batch_size == 4
    assert Repository([tmp_path]).read("m").config.max_batch_size == 4


def test_mistakes_name_the_file(tmp_path: Path) -> None:
    put(tmp_path, {"m/config.pbtxt": '\n  bakend: "python"'})  # codespell:ignore
    with pytest.raises(ConfigError) as raised:
        Repository([tmp_path]).read("m")
    path = tmp_path / "m" / "config.pbtxt"
    assert raised.value.message == f"{path}:2:3: unknown field 'bakend' in ModelConfig; did you mean 'backend'?"


def test_a_configuration_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.pbtxt").write_bytes(b'name: "m"\n# caf\xe9\n')
    with pytest.raises(ConfigError, match=r"config\.pbtxt:2: not UTF-8 text"):
        Repository([tmp_path]).read("m")


def test_a_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    put(tmp_path, {"m/config.pbtxt": "\ufeff" + CONFIG})
    assert Repository([tmp_path]).read("m").config.backend == "python"


def test_the_name_must_be_that_of_the_folder(tmp_path: Path) -> None:
    put(tmp_path, {"m/config.pbtxt": 'name: "other" backend: "python"'})
    said = "unexpected directory name 'm' for model 'other', directory name must equal model name"
    with pytest.raises(ConfigError, match=said):
        Repository([tmp_path]).read("m")


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "/etc", "a\\b", "a\0b", "ä" * 128])
def test_invalid_model_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="is not a valid folder name"):
        Repository([tmp_path]).read(name)


def test_an_unknown_model(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="model not found in any model repository"):
        Repository([tmp_path]).read("nope")


def test_rules_are_checked_before_anything_is_loaded(tmp_path: Path) -> None:
    shape = 'backend: "tensorrt" input { name: "a" data_type: TYPE_INT32 dims: 1 is_shape_tensor: true }'
    put(tmp_path, {"m/config.pbtxt": 'backend: "python" max_batch_size: -1', "s/config.pbtxt": shape})
    put(tmp_path, {"s/1/model.py": ""})
    with pytest.raises(ConfigError, match="'max_batch_size' must be non-negative"):
        Repository([tmp_path]).read("m")
    with pytest.raises(ConfigError, match="of model 's' is not supported"):
        Repository([tmp_path]).read("s")


def test_a_configuration_override_replaces_the_file(tmp_path: Path) -> None:
    put(tmp_path, {"m/config.pbtxt": "this is not read {", "m/1/model.py": ""})
    files = Repository([tmp_path]).read("m", Override(config='{"backend": "python", "max_batch_size": 2}'))
    assert (files.config.max_batch_size, files.versions_on_disk, files.temporary) == (2, (1,), False)
    assert files.config_source == "'config' of the load of 'm'"


def test_mistakes_of_an_override_name_it(tmp_path: Path) -> None:
    put(tmp_path, {"m/1/model.py": ""})
    with pytest.raises(ConfigError, match="'config' of the load of 'm': not valid JSON"):
        Repository([tmp_path]).read("m", Override(config="{"))
    with pytest.raises(ConfigError, match="unexpected directory name 'm' for model 'n'"):
        Repository([tmp_path]).read("m", Override(config='{"name": "n"}'))


def test_an_override_of_a_missing_model(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        Repository([tmp_path]).read("m", Override(config='{"backend": "python"}'))


def test_files_of_an_override_replace_the_folder(tmp_path: Path) -> None:
    put(tmp_path, {"m/config.pbtxt": CONFIG, "m/1/model.py": ""})
    override = Override(config='{"backend": "python"}', files={"7/model.py": b"x = 1", "labels.txt": b"a\n"})
    repository = Repository([tmp_path])  # whose end is that of the uploads
    files = repository.read("m", override)
    assert files.temporary
    assert files.versions_on_disk == (7,)
    assert (files.directory / "7" / "model.py").read_bytes() == b"x = 1"
    assert (files.directory / "labels.txt").read_bytes() == b"a\n"
    assert files.fingerprint == Repository([tmp_path]).fingerprint("m")
    files.discard()
    assert not files.directory.exists()
    files.discard()
    assert (tmp_path / "m" / "1" / "model.py").exists()


def test_files_can_add_a_model(tmp_path: Path) -> None:
    files = Repository([tmp_path]).read("new", Override(config="{}", files={"1/model.onnx": b""}))
    assert (files.config.name, files.config.backend, files.fingerprint) == ("new", "onnxruntime", ())
    files.discard()


def test_files_need_a_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'file:' parameters need a 'config' parameter"):
        Repository([tmp_path]).read("m", Override(files={"1/model.py": b""}))


@pytest.mark.parametrize("path", ["../x", "/etc/x", "1/../../x", "", ".", "a\0b", "1/model.py/x", "1"])
def test_files_that_lead_out_leave_nothing_behind(tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    override = Override(config='{"backend": "python"}', files={"1/model.py": b"", path: b""})
    with pytest.raises(ConfigError, match="load of 'm': 'file:"):
        Repository([tmp_path]).read("m", override)
    assert list(tmp_path.iterdir()) == []


def test_a_refused_override_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(ConfigError, match="max_batch_size"):
        Repository([tmp_path]).read("m", Override(config='{"max_batch_size": "x"}', files={"1/model.py": b""}))
    assert list(tmp_path.iterdir()) == []


def test_whether_there_is_an_override() -> None:
    assert not Override()
    assert Override(config="")
    assert Override(files={"1/x": b""})
