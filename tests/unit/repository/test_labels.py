"""Label files."""

from pathlib import Path

import pytest

from conch.errors import ModelLoadError
from conch.model_config import ModelConfig, TensorSpec
from conch.repository.labels import read_labels


def config(*filenames: str) -> ModelConfig:
    outputs = tuple(TensorSpec(f"o{n}", "FP32", (3,), label_filename=name) for n, name in enumerate(filenames))
    return ModelConfig("m", "python", "", 0, (), outputs)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"cat\ndog\n", ("cat", "dog")),
        (b"cat\ndog", ("cat", "dog")),
        (b"cat\n\ndog\n", ("cat", "", "dog")),
        ("Hündin, a dog\n猫\n".encode(), ("Hündin, a dog", "猫")),
        (b"caf\xe9\n", ("caf\udce9",)),
        (b"", ()),
    ],
)
def test_lines_are_labels(tmp_path: Path, text: bytes, expected: tuple[str, ...]) -> None:
    (tmp_path / "labels.txt").write_bytes(text)
    assert read_labels(config("", "labels.txt"), tmp_path) == {"o1": expected}


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError) as raised:
        read_labels(config("labels.txt"), tmp_path)
    assert raised.value.message == (
        f"failed to open text file for read {tmp_path / 'labels.txt'}: No such file or directory "
        "(label_filename of output 'o0' of model 'm')"
    )


def test_labels_of_elsewhere_are_refused(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "secret").write_text("x")
    with pytest.raises(ModelLoadError, match="leads out of the model's directory"):
        read_labels(config("../secret"), tmp_path / "m")
