"""Language models: messages of their engines, with file and line, without an engine."""

import json
from pathlib import Path
from typing import Any

import pytest

from conch.check.finding import Place
from tests.server.backends.engines.gguf_model import write_gguf
from tests.unit.check.repository import findings_of, ids, only_finding, write


def _model(root: Path, backend: str, model_json: Any = None, config: str = "") -> Path:
    """Write a model; return its version's folder."""
    write(root / "m" / "config.pbtxt", f'backend: "{backend}"\n{config}')
    version = root / "m" / "1"
    version.mkdir(parents=True)
    if model_json is not None:
        write(version / "model.json", model_json if isinstance(model_json, str) else json.dumps(model_json))
    return version


def _checkpoint(directory: Path, template: Any = "{{ messages }}") -> None:
    write(directory / "config.json", "{}")
    write(directory / "tokenizer_config.json", json.dumps({"chat_template": template}))


@pytest.mark.parametrize("backend", ["scripted", "vllm", "tensorrtllm"])
def test_valid_repositories_have_no_findings(tmp_path: Path, backend: str) -> None:
    version = _model(tmp_path, backend, {} if backend == "scripted" else {"model": "weights"})
    _checkpoint(version / "weights")
    assert findings_of(tmp_path) == []


def test_a_gguf_file_alone_is_a_model(tmp_path: Path) -> None:
    write_gguf(_model(tmp_path, "openvino_genai") / "model.gguf")
    assert findings_of(tmp_path) == []


@pytest.mark.parametrize("backend", ["scripted", "vllm", "tensorrtllm", "openvino_genai"])
def test_invalid_json_is_reported_at_its_line(tmp_path: Path, backend: str) -> None:
    version = _model(tmp_path, backend, '{"model": "weights",\n  max: 1}')
    finding = only_finding(tmp_path)
    assert finding.rule.id == "engine-arguments"
    assert finding.place == Place(version / "model.json", 2, 3)
    assert finding.message.startswith("model.json of model 'm': Expecting property name")


@pytest.mark.parametrize(
    ("backend", "document", "said"),
    [
        ("scripted", {"reply_": "x"}, "unknown key 'reply_'; known: "),
        ("openvino_genai", {"cache": 1}, "unknown key 'cache'; known: cache_size"),
        ("openvino_genai", {"cache_size": "1"}, "'cache_size' must be int, got \"1\""),
        ("openvino_genai", {"model": "nowhere.gguf"}, "'model' is not at '"),
        ("openvino_genai", {"max_model_len": 100_000}, "max_model_len 100000 exceeds the model's 512"),
        ("vllm", {"tensor_parallel_size": 2}, "needs 'model'"),
        ("vllm", {"model": "./nowhere"}, "there is no '"),
        ("tensorrtllm", {"tensor_parallel_size": 2}, "'model' must name a checkpoint"),
    ],
)
def test_unknown_engine_arguments_are_reported(tmp_path: Path, backend: str, document: Any, said: str) -> None:
    version = _model(tmp_path, backend, document)
    if backend == "openvino_genai":
        write_gguf(version / "model.gguf")
    finding = only_finding(tmp_path)
    assert (finding.rule.id, finding.place) == ("engine-arguments", Place(version / "model.json"))
    assert said in finding.message


def test_a_missing_model_is_reported(tmp_path: Path) -> None:
    _model(tmp_path, "openvino_genai")
    assert "no model in" in only_finding(tmp_path).message


@pytest.mark.parametrize(
    ("backend", "document"), [("vllm", {"model": "org/name"}), ("tensorrtllm", {"model": "org/name"})]
)
def test_missing_adapters_are_reported(tmp_path: Path, backend: str, document: dict[str, Any]) -> None:
    version = _model(
        tmp_path, backend, {**document, "lora_config": {"max_lora_rank": 8}} if backend == "tensorrtllm" else document
    )
    write(version / "multi_lora.json", '{"mine": "adapters/mine"}')
    finding = only_finding(tmp_path)
    assert (finding.rule.id, finding.place) == ("engine-arguments", Place(version / "multi_lora.json"))
    assert "adapter 'mine'" in finding.message
    write(version / "adapters" / "mine" / "adapter_config.json", "{}")
    assert findings_of(tmp_path) == []


def test_tensorrtllm_requires_the_shape_of_adapters(tmp_path: Path) -> None:
    version = _model(tmp_path, "tensorrtllm", {"model": "org/name"})
    write(version / "multi_lora.json", '{"mine": "adapters/mine"}')
    assert '"lora_config"' in only_finding(tmp_path).message


def test_engines_that_triton_runs_are_refused_at_the_parameter(tmp_path: Path) -> None:
    parameter = 'parameters { key: "gpt_model_path" value { string_value: "/engines/llama" } }'
    _model(tmp_path, "tensorrtllm", {"model": "org/name"}, parameter)
    finding = only_finding(tmp_path)
    assert (finding.rule.id, finding.place.line) == ("config-invalid", 2)


def test_tensors_must_be_those_of_a_generation(tmp_path: Path) -> None:
    _model(tmp_path, "scripted", {}, 'input [ { name: "input_ids" data_type: TYPE_INT32 dims: [ -1 ] } ]')
    finding = only_finding(tmp_path)
    assert (finding.rule.id, finding.place.line) == ("config-invalid", 2)
    assert "unknown input 'input_ids' of model 'm'; an engine has" in finding.message


@pytest.mark.parametrize(
    ("contents", "rule"),
    [
        (b"", "file-empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "file-lfs-pointer"),
        (b"PK\x03\x04 a zip file", "file-damaged"),
        (b"GGUF\x03\x00\x00\x00\xff", "file-damaged"),
    ],
)
def test_an_invalid_gguf_file(tmp_path: Path, contents: bytes, rule: str) -> None:
    write(_model(tmp_path, "openvino_genai") / "model.gguf", contents)
    assert ids(tmp_path) == [rule]


@pytest.mark.parametrize("wrong", ["{% for %}", "{{ messages", [{"name": "tool_use", "template": "{% endif %}"}]])
def test_a_template_that_does_not_compile(tmp_path: Path, wrong: Any) -> None:
    version = _model(tmp_path, "vllm", {"model": "weights"})
    _checkpoint(version / "weights", wrong)
    finding = only_finding(tmp_path)
    assert (finding.rule.id, finding.place) == ("chat-template", Place(version / "weights" / "tokenizer_config.json"))
    assert "invalid chat template" in finding.message


def test_a_template_in_a_gguf_file_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.server.backends.engines.gguf_model.TEMPLATE", "{% if %}")
    write_gguf(_model(tmp_path, "openvino_genai") / "model.gguf")
    assert ids(tmp_path) == ["chat-template"]


def test_embedding_models_are_not_checked(tmp_path: Path) -> None:
    _model(tmp_path, "openvino_genai", {"task": "embed"})
    assert ids(tmp_path) == ["model-unread"]


def test_an_ensemble_sees_the_tensors_of_a_generation(tmp_path: Path) -> None:
    _model(tmp_path, "scripted", {})
    config = """
        platform: "ensemble"
        input { name: "IN" data_type: TYPE_STRING dims: 1 }
        output { name: "OUT" data_type: TYPE_STRING dims: -1 }
        ensemble_scheduling {
          step {
            model_name: "m"
            input_map { key: "text" value: "IN" }
            output_map { key: "text_output" value: "OUT" }
          }
        }
    """
    write(tmp_path / "e" / "config.pbtxt", config)
    (tmp_path / "e" / "1").mkdir()
    assert "ensemble-contract" in ids(tmp_path)
