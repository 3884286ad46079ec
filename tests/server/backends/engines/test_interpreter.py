"""Which interpreter runs an engine: named by the model, by a flag, or the server's own."""

from pathlib import Path

import pytest

from conch.base.errors import ModelLoadError
from conch.domain.model_config import ModelConfig
from conch.server.backends.base import ModelSource
from conch.server.backends.engines.backend import interpreter


def source(directory: Path, parameter: str = "", flag: str = "") -> ModelSource:
    parameters = {"EXECUTION_ENV_PATH": parameter} if parameter else {}
    config = ModelConfig("m", "vllm", "", 0, (), (), parameters=parameters)
    return ModelSource(config, 1, directory, {"env-path": flag} if flag else {})


def write_environment(root: Path) -> Path:
    program = root / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.touch()
    return program


def test_a_relative_flag_is_resolved_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program = write_environment(tmp_path / "venv")
    write_environment(tmp_path / "m" / "venv")
    assert interpreter(source(tmp_path / "m", flag="./venv"), "vllm", "vllm") == program


def test_a_relative_parameter_is_resolved_in_the_models_folder(tmp_path: Path) -> None:
    program = write_environment(tmp_path / "m" / "venv")
    assert interpreter(source(tmp_path / "m", "venv", "elsewhere"), "vllm", "vllm") == program
    assert interpreter(source(tmp_path / "m", flag="$$TRITON_MODEL_DIRECTORY/venv"), "vllm", "vllm") == program


def test_the_message_names_what_was_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelLoadError) as caught:
        interpreter(source(tmp_path / "m", flag="./venv"), "vllm", "vllm")
    assert f"--backend-config=vllm,env-path=./venv: '{tmp_path / 'venv'}' does not exist" in caught.value.message
    assert "EXECUTION_ENV_PATH" not in caught.value.message
    (tmp_path / "m" / "venv").mkdir(parents=True)
    with pytest.raises(ModelLoadError, match=r"EXECUTION_ENV_PATH '.*venv' is not an interpreter"):
        interpreter(source(tmp_path / "m", "venv"), "vllm", "vllm")
