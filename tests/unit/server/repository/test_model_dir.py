"""`--model-dir`: which model is in a folder, and how it is presented as a repository."""

import asyncio
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from conch.base.errors import ConfigError
from conch.server.repository.model_dir import ModelDirRoot, wait_for_path
from conch.server.repository.store import ModelFiles, Repository
from tests.server.backends.engines.gguf_model import write_gguf
from tests.server.backends.onnxruntime.onnx_models import FP32, write_identity
from tests.unit.server.repository.test_store import put


class Read(Protocol):
    """Reads the model of a folder."""

    def __call__(self, folder: Path, name: str = "m", *, allow_pickles: bool = False) -> ModelFiles: ...


@pytest.fixture
def read() -> Iterator[Read]:
    kept: list[Repository] = []  # links live as long as their repository

    def read(folder: Path, name: str = "m", *, allow_pickles: bool = False) -> ModelFiles:
        kept.append(Repository([ModelDirRoot(folder, name, allow_pickles=allow_pickles)]))
        return kept[-1].read(name)

    yield read
    kept.clear()


@pytest.fixture
def onnx(tmp_path: Path) -> Iterator[Path]:
    """A read-only folder with only model.onnx."""
    folder = tmp_path / "mounted"
    folder.mkdir()
    shutil.move(write_identity(tmp_path / "made", FP32, ["n", 4]) / "1" / "model.onnx", folder)
    folder.chmod(0o555)
    yield folder
    folder.chmod(0o755)


def test_one_file(onnx: Path, read: Read) -> None:
    files = read(onnx)
    assert (files.config.backend, files.versions_on_disk, files.temporary) == ("onnxruntime", (1,), True)
    link = files.directory / "1" / "model.onnx"
    assert link.is_symlink()
    assert link.readlink() == onnx / "model.onnx"
    assert [path.name for path in onnx.iterdir()] == ["model.onnx"]
    files.discard()
    assert not files.directory.exists()
    assert (onnx / "model.onnx").is_file()


def test_the_fingerprint_is_that_of_the_mounted_files(onnx: Path) -> None:
    root = ModelDirRoot(onnx, "m")
    assert [path for path, _, _ in root.fingerprint("m")] == ["model.onnx"]
    assert root.scan() == {"m": root.fingerprint("m")}
    assert root.fingerprint("other") == ()
    assert root.find("other") is None
    assert (root.has("m"), root.has("other")) == (True, False)


@pytest.mark.parametrize(
    ("name", "head", "backend", "linked"),
    [
        ("model.bst", b"{L\0\0\0\0\0\0\0\7learner", "fil", "xgboost.ubj"),
        ("iris.ubj", b"{L\0\0\0\0\0\0\0\7learner", "fil", "xgboost.ubj"),
        ("model.json", b'{"learner":{', "fil", "xgboost.json"),
        ("model.txt", b"tree\nversion=v4\n", "fil", "model.txt"),
        ("model.bst", b"tree\nversion=v4\n", "fil", "model.txt"),
        ("forest.tl", b"\4\0\0\0\1\0\0\0\0\0\0\0", "fil", "checkpoint.tl"),
    ],
)
def test_forests_are_recognised_by_their_contents(
    name: str, head: bytes, backend: str, linked: str, tmp_path: Path, read: Read
) -> None:
    (tmp_path / name).write_bytes(head)
    files = read(tmp_path)
    assert files.config.backend == backend
    assert [path.name for path in (files.directory / "1").iterdir()] == [linked]


def test_language_models(tmp_path: Path, read: Read) -> None:
    (tmp_path / "gguf").mkdir()
    write_gguf(tmp_path / "gguf" / "Small-Q4.gguf")
    files = read(tmp_path / "gguf")
    assert files.config.backend == "openvino_genai"
    put(tmp_path, {"hub/config.json": "{}", "hub/model.safetensors": "x", "hub/tokenizer.json": "{}"})
    files = read(tmp_path / "hub")
    assert files.config.backend == "vllm"
    assert (files.directory / "1" / "checkpoint" / "config.json").is_symlink()


def test_one_of_several_files(onnx: Path, read: Read) -> None:
    onnx.chmod(0o755)
    (onnx / "other.onnx").write_bytes((onnx / "model.onnx").read_bytes())
    with pytest.raises(ConfigError, match=r"several models; choose one: model\.onnx, other\.onnx"):
        read(onnx)
    files = read(onnx / "other.onnx")
    assert (files.directory / "1" / "model.onnx").readlink() == onnx / "other.onnx"
    assert [path for path, _, _ in files.fingerprint] == ["model.onnx", "other.onnx"]
    assert ModelDirRoot(onnx / "other.onnx").names() == ["other"]


@pytest.mark.parametrize("name", ["model.joblib", "model.pkl", "iris.pickle"])
def test_pickles_need_a_flag(name: str, tmp_path: Path, read: Read) -> None:
    (tmp_path / name).write_bytes(b"\x80\x04N.")
    with pytest.raises(ConfigError, match=rf"{name}' is a pickle, .* any code.*skl2onnx.*--allow-pickled-models"):
        read(tmp_path)
    files = read(tmp_path, allow_pickles=True)
    assert files.config.backend == "python"


def test_a_model_folder_is_served_under_another_name(tmp_path: Path, read: Read) -> None:
    put(tmp_path, {"config.pbtxt": 'name: "densenet" backend: "python"', "1/model.py": "", "7/model.py": ""})
    files = read(tmp_path, "isvc")
    assert (files.name, files.config.name, files.directory) == ("isvc", "isvc", tmp_path)
    assert (files.versions_on_disk, files.temporary) == ((1, 7), False)


def test_models_of_a_repository_keep_their_names(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    put(tmp_path, {"a/config.pbtxt": 'backend: "python"', "a/1/model.py": "", "b/1/model.py": "", ".git/1/x": ""})
    root = ModelDirRoot(tmp_path, "isvc")
    assert root.is_repository
    for _ in range(2):
        assert sorted(root.names()) == ["a", "b"]
    assert caplog.text.count("its models keep their names, --model-name is not used") == 1
    assert Repository([root]).read("b").directory == tmp_path / "b"
    assert not root.has("isvc")


def test_the_name_is_that_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "resnet 50").mkdir()
    assert ModelDirRoot(tmp_path / "resnet 50").names() == ["resnet_50"]


@pytest.mark.parametrize("name", ["../secret", "a/b", "..", "x" * 300, ".hidden", "a\0b"])
def test_names_stay_inside(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is not (a valid folder name|possible)"):
        ModelDirRoot(tmp_path, name)


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({}, "contains no model: expected .*; found nothing"),
        ({"README.md": "", "labels.csv": ""}, r"contains no model: .*\.onnx, .*model\.json.*; found README.md, labels"),
        ({"a.onnx": "", "b.onnx": ""}, "contains several models; choose one: a.onnx, b.onnx"),
        ({"model.onnx": ""}, "model.onnx' is empty"),
        ({"model.onnx": "junk"}, "is not a valid ONNX model"),
        ({"model.bst": "junk"}, "is not a forest: expected JSON or UBJSON of XGBoost"),
        ({"frozen.pb": "x"}, "contains no model"),
        ({"saved_model.pb": "x"}, "is not a SavedModel of TensorFlow"),
        ({"config.pbtxt": 'backend: "onnxruntime"', "model.onnx": "x"}, None),
    ],
)
def test_what_is_not_a_model(files: dict[str, str], complaint: str | None, tmp_path: Path, read: Read) -> None:
    put(tmp_path, files)
    if complaint is None:
        assert read(tmp_path).versions_on_disk == ()  # the load then says where the file must be
        return
    with pytest.raises(ConfigError, match=complaint):
        read(tmp_path)


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'.*nowhere' cannot be read: No such file"):
        Repository([ModelDirRoot(tmp_path / "nowhere", "m")]).names()


def test_waiting_for_a_modelcar(tmp_path: Path) -> None:
    """The link that a modelcar creates appears late."""
    (tmp_path / "image").mkdir()
    link = tmp_path / "models"
    thread = threading.Timer(0.2, link.symlink_to, [tmp_path / "image"])
    thread.start()
    asyncio.run(wait_for_path(link, 60))
    assert link.is_dir()
    thread.join()


@pytest.mark.slow
def test_a_modelcar_that_does_not_come(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    asyncio.run(wait_for_path(tmp_path / "models", 1))
    assert "does not exist after 1 s" in caplog.text
