"""What is said of a language model whose files are damaged or missing: which file, and what would be right."""

from pathlib import Path
from typing import Any

import pytest

from conch.base.errors import ModelLoadError
from conch.server.backends.child.conch_child.engine.driver import DamagedModel
from conch.server.backends.child.conch_child.engine.openvino_genai.options import read_only_remedy, read_options
from tests.server.backends.engines.driving import running
from tests.server.backends.engines.gguf_model import write_gguf

_AMPLE: dict[str, Any] = {"free": 1 << 60, "capacity": 1 << 60, "promised": {}, "gpu_shares": {}}
IR = ("openvino_model", "openvino_tokenizer", "openvino_detokenizer")


def refusal(directory: Path) -> str:
    with pytest.raises(DamagedModel) as caught:
        read_options({"directory": str(directory), "memory": _AMPLE}, lambda level, text: None)
    return caught.value.text


@pytest.mark.parametrize("kept", [1000, 20_000, -64])
def test_a_gguf_file_that_was_cut_short(tmp_path: Path, kept: int) -> None:
    file = write_gguf(tmp_path / "model.gguf") or tmp_path / "model.gguf"
    file.write_bytes(file.read_bytes()[:kept])
    said = refusal(tmp_path)
    assert said.startswith(f"{file}: the GGUF file is damaged or incomplete (")
    assert said.endswith("copy or convert it again")


def test_a_file_that_is_something_else(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"PK\3\4")
    assert "not a GGUF file, or damaged: it begins with b'PK\\x03\\x04', not b'GGUF'" in refusal(tmp_path)
    (tmp_path / "model.gguf").write_text("version https://git-lfs.github.com/spec/v1\n")
    assert refusal(tmp_path).endswith("it is a Git LFS pointer: run `git lfs pull`")


def test_an_ir_without_its_other_files(tmp_path: Path) -> None:
    (tmp_path / "openvino_model.xml").write_text("<net/>")
    said = refusal(tmp_path)
    missing = "openvino_model.bin, openvino_tokenizer.xml, openvino_tokenizer.bin, openvino_detokenizer.xml"
    assert f"{tmp_path}: the model is incomplete, {missing} is missing" in said


def test_a_gguf_file_that_cannot_be_opened_for_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_only_remedy(tmp_path) == ""
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert read_only_remedy(tmp_path / "openvino_model.xml") == ""
    assert "make it writable for that user" in read_only_remedy(tmp_path / "model.gguf")


async def test_an_ir_that_the_library_cannot_read(tmp_path: Path) -> None:
    version = tmp_path / "m" / "1"
    version.mkdir(parents=True)
    for name in IR:
        (version / f"{name}.xml").write_text("<net/>")
        (version / f"{name}.bin").touch()
    (version / "model.json").write_text('{"num_kv_blocks": 16}')
    with pytest.raises(ModelLoadError) as caught:
        async with running("openvino_genai", version):
            pass
    assert "OpenVINO GenAI cannot load it: Unable to read the model: " in caught.value.message
    assert "Traceback" not in caught.value.message
