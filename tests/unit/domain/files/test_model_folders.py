"""Names of models' folders, and the distinction of models and repositories."""

from pathlib import Path

import pytest

from conch.domain.files.model_folder import is_model, is_model_name


@pytest.mark.parametrize("name", [".git", "..data", "lost+found", "__pycache__", "@eaDir"])
def test_folders_of_other_uses_are_not_models(name: str) -> None:
    assert not is_model_name(name)


@pytest.mark.parametrize(
    ("files", "model"),
    [
        (["config.pbtxt", "1/model.onnx"], True),
        (["1/model.py", "2/model.py", "labels.txt", ".cache/x"], True),
        (["config.pbtxt"], True),
        (["m/config.pbtxt", "m/1/model.onnx"], False),
        (["7/1/model.onnx"], False),  # a model whose name is a number
        (["7/config.pbtxt", "7/model.txt"], False),
        (["config.pbtxt", "m/1/model.onnx"], False),
        ([], False),
    ],
)
def test_models_and_repositories_are_distinguished(tmp_path: Path, files: list[str], model: bool) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert is_model(tmp_path) == model


def test_an_unreadable_folder_is_not_a_model(tmp_path: Path) -> None:
    assert not is_model(tmp_path / "nowhere")
