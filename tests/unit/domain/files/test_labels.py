"""Label files."""

import os
from pathlib import Path

import pytest

from conch.base.errors import ModelLoadError
from conch.domain.files.model_folder import read_labels
from conch.domain.model_config import ModelConfig, TensorSpec


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


def test_labels_outside_of_the_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "secret").write_text("x")
    with pytest.raises(ModelLoadError, match="leads out of the model's directory"):
        read_labels(config("../secret"), tmp_path / "m")


def test_a_file_too_large_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "labels.txt").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ModelLoadError, match="of model 'm' has 1099511627776 bytes; the limit is 16777216"):
        read_labels(config("labels.txt"), tmp_path)


def test_files_are_bounded_together_and_read_once(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"x" * (10 << 20))
    assert len(read_labels(config("a", "a", "a"), tmp_path)) == 3
    with pytest.raises(ModelLoadError, match=r"'b' of output 'o1' .* has 10485760 bytes; the limit is 6291456"):
        read_labels(config("a", "b"), tmp_path)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "link", "loop", "x" * 5000, "nul\0"])
def test_paths_that_lead_out_of_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "link").symlink_to("/etc/passwd")
    (folder / "loop").symlink_to("loop")
    with pytest.raises(ModelLoadError, match=r"leads out of the model's directory|File name too long|symbolic links"):
        read_labels(config(name), folder)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelLoadError, match="label_filename 'pipe' of output 'o0' of model 'm' is not a regular file"):
        read_labels(config("pipe"), tmp_path)
