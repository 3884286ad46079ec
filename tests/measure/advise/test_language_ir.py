"""Language models in OpenVINO IR are recognized by their tokenizer and their logits."""

import json
from pathlib import Path

import pytest

from tests.measure.advise.test_cases import run
from tests.unit.domain.llm.planning.configs import QWEN_05B

MACHINE = ("--machine", "8 cores, 16GiB, Intel")


def write_ir(folder: Path, output: str = "logits") -> Path:
    """Write the files of an export: a graph with one output, a tokenizer, and 3 MiB of weights."""
    folder.mkdir(parents=True)
    port = '<port id="0" precision="I64" names="input_ids"><dim>-1</dim><dim>-1</dim></port>'
    (folder / "openvino_model.xml").write_text(
        f"""<net name="m" version="11"><layers>
<layer id="0" name="input_ids" type="Parameter" version="opset1"><data shape="?,?" element_type="i64"/>
<output>{port}</output></layer>
<layer id="1" name="head" type="Convert" version="opset1"><data destination_type="f32"/><input>{port}</input>
<output><port id="1" precision="FP32" names="{output}"><dim>-1</dim><dim>-1</dim></port></output></layer>
<layer id="2" name="result" type="Result" version="opset1"><input><port id="0"/></input></layer>
</layers><edges><edge from-layer="0" from-port="0" to-layer="1" to-port="0"/>
<edge from-layer="1" from-port="1" to-layer="2" to-port="0"/></edges></net>"""
    )
    for name in ("openvino_tokenizer", "openvino_detokenizer"):
        (folder / f"{name}.xml").write_text("<net/>")
        (folder / f"{name}.bin").write_bytes(b"")
    (folder / "openvino_model.bin").write_bytes(bytes(3 << 20))
    (folder / "config.json").write_text(json.dumps(QWEN_05B))
    return folder


def test_a_folder_is_a_language_model(tmp_path: Path) -> None:
    write_ir(tmp_path / "chat")
    status, printed = run(["chat", *MACHINE, "--concurrency", "2", "--write", "out"], tmp_path)
    assert status == 0, printed
    assert "chat (language model in OpenVINO IR): openvino_genai, weights as stored, 1 instance, 8 threads" in printed
    assert "not vllm: it does not read OpenVINO IR" in printed
    assert "weights 3.0 MiB [from the file: size of the file]" in printed
    assert "KV cache 96.0 MiB [from the file: 2 × 4096 tokens, 16 bits]" in printed
    assert {path.name for path in (tmp_path / "out" / "chat" / "1").iterdir()} == {
        "model.json",
        *(path.name for path in (tmp_path / "chat").iterdir()),
    }


def test_a_model_of_a_repository_is_a_language_model(tmp_path: Path) -> None:
    write_ir(tmp_path / "models" / "chat" / "1")
    (tmp_path / "models" / "chat" / "config.pbtxt").write_text('backend: "openvino_genai"\n')
    status, printed = run(["models", *MACHINE], tmp_path)
    assert status == 0, printed
    assert "chat (language model in OpenVINO IR): openvino_genai" in printed
    assert '"max_model_len": 4096' in printed


def test_without_config_json_the_length_must_be_given(tmp_path: Path) -> None:
    (write_ir(tmp_path / "chat") / "config.json").unlink()
    status, printed = run(["chat", *MACHINE], tmp_path)
    assert status == 1
    assert "'chat' has no context length: give --prompt-tokens and --output-tokens" in printed
    status, printed = run(["chat", *MACHINE, "--prompt-tokens", "100", "--output-tokens", "20"], tmp_path)
    assert status == 0
    assert "KV cache" not in printed


def test_an_encoder_is_a_tensor_model(tmp_path: Path) -> None:
    write_ir(tmp_path / "encoder", "last_hidden_state")
    status, printed = run(["encoder", *MACHINE], tmp_path)
    assert status == 0, printed
    assert "encoder (OpenVINO IR): openvino, as stored" in printed


def test_a_model_with_images_is_refused(tmp_path: Path) -> None:
    (tmp_path / "seeing").mkdir()
    (tmp_path / "seeing" / "openvino_language_model.xml").write_text("<net/>")
    status, printed = run(["seeing", *MACHINE], tmp_path)
    assert status == 1
    assert "'seeing' is a language model with images (openvino_language_model.xml)" in printed


@pytest.mark.parametrize("name", ["openvino_model.bin", "openvino_model.xml"])
def test_an_incomplete_folder_is_refused(name: str, tmp_path: Path) -> None:
    folder = write_ir(tmp_path / "chat")
    (folder / name).unlink()
    status, printed = run(["chat", "--machine", "8 cores, 16GiB"], tmp_path)
    assert status == 1, printed
    assert name in printed or "no backend can serve 'chat' (checkpoint)" in printed
