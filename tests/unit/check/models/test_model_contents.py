"""The contents of GGUF, TorchScript, IR and safetensors files, read without their frameworks, whole and damaged."""

import json
import resource
import struct
import zipfile
from contextlib import suppress
from pathlib import Path
from random import Random

import numpy as np
import pytest

from conch.base.errors import InvalidRequest, ModelLoadError
from conch.check.models import language_models
from conch.check.models.language_models import safetensors_problems
from conch.check.models.torch_script_file import DamagedScript, read_script
from conch.domain.files.gguf_file import NotGguf, read_gguf
from conch.domain.files.ir_file import NotIr, read_ir
from conch.measure.advise.checkpoint import read_checkpoint
from conch.server.backends.pytorch.archive import exported_signature, open_archive
from tests.server.backends.engines.gguf_model import CONTEXT, LAYERS, write_gguf
from tests.support.packages import require
from tests.unit.check.repository import findings_of, ids, only_finding, write

require("openvino", "torch")

import openvino as ov  # noqa: E402
import torch  # noqa: E402
from openvino import opset13  # noqa: E402

from tests.server.backends.pytorch.torch_models import write_script  # noqa: E402

TENSORS = 'input { name: "x" data_type: TYPE_FP32 dims: 2 } output { name: "OUTPUT__0" data_type: TYPE_FP32 dims: 2 }'


class Two(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * mask


def language_model(root: Path) -> Path:
    write(root / "m" / "config.pbtxt", 'backend: "openvino_genai"\n')
    (root / "m" / "1").mkdir()
    return write_gguf(root / "m" / "1" / "model.gguf")


def test_the_header_of_a_gguf_file(tmp_path: Path) -> None:
    gguf = read_gguf(language_model(tmp_path))
    assert (gguf.architecture, gguf.context_length, gguf.blocks) == ("qwen2", CONTEXT, LAYERS)
    assert gguf.missing_tensors() == []
    assert gguf.chat_template is not None
    assert sum(gguf.types.values()) == len(gguf.tensors)
    assert findings_of(tmp_path) == []


def test_a_gguf_file_that_is_cut_off(tmp_path: Path) -> None:
    path = language_model(tmp_path)
    path.write_bytes(path.read_bytes()[:-64])
    finding = only_finding(tmp_path)
    assert finding.rule.id == "file-damaged"
    assert "ends at byte" in finding.message


def test_a_gguf_file_without_a_layer_and_without_a_template(tmp_path: Path) -> None:
    path = language_model(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"blk.1.", b"blk.0.").replace(b"tokenizer.chat_template", b"tokenizer.chat_templatx"))
    by_rule = {finding.rule.id: finding.message for finding in findings_of(tmp_path)}
    assert by_rule.keys() == {"file-damaged", "chat-template-missing"}
    assert "lacks tensor 'blk.1.*'" in by_rule["file-damaged"]


def test_a_quantisation_that_the_engine_may_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language_models, "_GGUF_TYPES", frozenset({"F32"}))
    language_model(tmp_path)
    finding = only_finding(tmp_path)
    assert finding.rule.id == "quantisation"
    assert "are in F16" in finding.message


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"GGUF",
        b"GGUF" + struct.pack("<I", 1),
        b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1 << 62),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"a" + struct.pack("<IIQ", 9, 4, 1 << 62),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"a" + struct.pack("<IIQ", 9, 8, 1 << 62),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"a" + struct.pack("<I", 99),
        b"GGUF" + struct.pack("<IQQQ", 3, 1, 0, 1) + b"a" + struct.pack("<I", 1 << 31),
    ],
)
def test_hostile_gguf_headers(header: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(header)
    with pytest.raises(NotGguf):
        read_gguf(path)


def test_any_bytes_are_gguf_or_refused(tmp_path: Path) -> None:
    path = language_model(tmp_path)
    data, chance = path.read_bytes()[:6000], Random(1)
    for _ in range(300):
        changed = bytearray(data)
        for _ in range(4):
            changed[chance.randrange(4, len(changed))] = chance.randrange(256)
        path.write_bytes(changed)
        with pytest.raises(NotGguf):
            read_gguf(path)  # cut off, whatever else


def script(root: Path, config: str = f'backend: "pytorch" {TENSORS}') -> Path:
    write_script(root / "m", Two(), config)
    return root / "m" / "1" / "model.pt"


def test_the_arguments_of_torch_script(tmp_path: Path) -> None:
    arguments = read_script(open_archive(script(tmp_path)))
    assert arguments is not None
    assert arguments.names == arguments.required == ("x", "mask")
    finding = only_finding(tmp_path)
    assert finding.rule.id == "model-signature"
    assert finding.message == (
        "unable to load model 'm', configuration expects 1 inputs, model provides 2: forward(x, mask) lacks 'mask'"
    )


def repacked(path: Path, change: dict[str, bytes | None]) -> None:
    """Write an archive again, without some members or with others."""
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(path, "w") as file:
        for name, data in members.items():
            member = name.partition("/")[2]
            if (new := change.get(member, data)) is not None:
                file.writestr(name, new)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"data/0": None}, "lacks the weights 'data/0'"),
        ({"data/0": b"1234"}, "have 4 bytes instead of 16"),
        ({"data.pkl": b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R."}, None),
        ({"data.pkl": b"\x80\x02"}, "data.pkl cannot be read"),
        ({"data.pkl": b""}, "data.pkl cannot be read"),
        ({"data.pkl": None}, "it has no data.pkl"),
    ],
)
def test_damaged_torch_script(change: dict[str, bytes | None], said: str | None, tmp_path: Path) -> None:
    path = script(tmp_path)
    repacked(path, change)
    if said is None:  # an unknown class: nothing is called, and no arguments are recognised
        assert read_script(open_archive(path)) is None
        return
    with pytest.raises(DamagedScript, match=said):
        read_script(open_archive(path))
    assert ids(tmp_path) == ["file-damaged"]


def ir(path: Path) -> str:
    x = opset13.parameter([1, 4], np.float32, name="x")
    weights = opset13.convert(opset13.constant(np.zeros((4, 2), np.float16)), np.float32)
    ov.save_model(ov.Model([opset13.matmul(x, weights, False, False)], [x], "m"), path, compress_to_fp16=False)
    return path.read_text()


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('size="16"', 'size="8"', "has 8 bytes; its shape [4, 2] needs 16"),
        ('version="11"', 'version="7"', "version 7 of the format"),
        ('version="11"', 'version="12"', "OpenVINO may be too old"),
    ],
)
def test_ir_that_contradicts_itself(before: str, after: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "model.xml"
    path.write_text(ir(path).replace(before, after))
    with pytest.raises(NotIr) as refused:
        read_ir(path)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('version="11"', f'version="{"9" * 5000}"', "a number of 5000 digits"),
        ('size="16"', f'size="{"9" * 5000}"', "a number of 5000 digits"),
        ('offset="0"', f'offset="{"9" * 5000}"', "a number of 5000 digits"),
        ('shape="4, 2"', f'shape="{", ".join(["9" * 20] * 65)}"', "has 65 dimensions"),
        ("<dim>1</dim>", f"<dim>{'9' * 5000}</dim>", "a number of 5000 digits"),
        ('<?xml version="1.0"?>', '<?xml version="1.0" encoding="x"?>', "not well-formed XML: unknown encoding"),
        ('<?xml version="1.0"?>', '<?xml version="1.0" encoding="shift_jis"?>', "not well-formed XML: multi-byte"),
    ],
    ids=["version", "size", "offset", "shape", "dimension", "unknown encoding", "long encoding"],
)
def test_hostile_ir(before: str, after: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "model.xml"
    text = ir(path)
    assert before in text
    path.write_text(text.replace(before, after))
    with pytest.raises(NotIr, match=said):
        read_ir(path)


def test_a_pickle_cannot_fill_memory(tmp_path: Path) -> None:
    path = script(tmp_path)
    # A memo of number 2³¹ - 1, and an array of bytes of 2⁴⁰, of which nothing follows.
    for pickled in (b"\x80\x02Nr\xff\xff\xff\x7f.", b"\x80\x05\x96" + (1 << 40).to_bytes(8, "little") + b"."):
        repacked(path, {"data.pkl": pickled})
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with suppress(DamagedScript):
            read_script(open_archive(path))
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # KiB


def test_a_forward_without_an_end(tmp_path: Path) -> None:
    path = script(tmp_path)
    repacked(
        path, {"code/__torch__/tests/unit/check/models/test_model_contents.py": b"class Two(Module):\n  def forward(("}
    )
    assert read_script(open_archive(path)) is None


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"m/models/model.json": "[" * 100_000}, "cannot be read: maximum recursion depth"),
        ({"m/models/model.json": "[" + "{}," * 5_000_001 + "{}]"}, "cannot be read: more than 10000000 values"),
        ({"m/models/model.json": "{}", "m/a_config.json": "[1]"}, "has an unknown form"),
        ({"m/models/model.json": "{}", "m/a_config.json": '{"config": {"a": 5}}'}, "has an unknown form"),
    ],
    ids=["deep", "many", "list", "number"],
)
def test_hostile_descriptions_of_exported_programs(members: dict[str, str], said: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "model.pt2", "w", zipfile.ZIP_DEFLATED) as file:
        for name, text in members.items():
            file.writestr(name, text)
    with pytest.raises(ModelLoadError, match=said):
        exported_signature(open_archive(tmp_path / "model.pt2"))


def test_ir_with_layers_of_an_extension(tmp_path: Path) -> None:
    write(tmp_path / "m" / "config.pbtxt", 'backend: "openvino"\n')
    (tmp_path / "m" / "1").mkdir()
    path = tmp_path / "m" / "1" / "model.xml"
    path.write_text(ir(path).replace('type="MatMul" version="opset1"', 'type="MyMul" version="extension"'))
    finding = only_finding(tmp_path)
    assert finding.rule.id == "model-operations"
    assert "MyMul (extension)" in finding.message


LLAMA = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "vocab_size": 1000,
         "num_attention_heads": 4, "num_hidden_layers": 2}  # fmt: skip


def safetensors(path: Path, names: dict[str, int], cut: int = 0) -> None:
    header, at = {}, 0
    for name, size in names.items():
        header[name] = {"dtype": "F32", "shape": [size // 4], "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(at - cut))


def test_safetensors(tmp_path: Path) -> None:
    assert list(safetensors_problems(tmp_path)) == []
    safetensors(tmp_path / "a.safetensors", {"x": 8, "y": 4})
    assert list(safetensors_problems(tmp_path)) == []
    index = {"weight_map": {"x": "a.safetensors", "z": "a.safetensors", "b": "b.safetensors"}}
    write(tmp_path / "model.safetensors.index.json", json.dumps(index))
    problems = [problem for _, problem in safetensors_problems(tmp_path)]
    assert problems[0] == "names b.safetensors, which is not in the folder"
    assert problems[1].startswith("lacks tensor 'z' (1 in all)")


@pytest.mark.parametrize("data", [b"", b"\xff" * 8, b"\x02" + bytes(7) + b"[]", b"version https://git-lfs", b"{" * 64])
def test_damaged_safetensors(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(data)
    assert len(list(safetensors_problems(tmp_path))) == 1


_TENSOR = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ({"a": _TENSOR, "b": _TENSOR}, "has a gap or an overlap before tensor 'b'"),
        ({"a": {**_TENSOR, "shape": [100]}}, "has 4 bytes, which is not what its shape needs"),
        ({"a": {**_TENSOR, "shape": [-1]}}, "has an invalid shape or place"),
        ({"a": {**_TENSOR, "data_offsets": [-4, 4]}}, "has an invalid shape or place"),
        ({"a": {**_TENSOR, "data_offsets": [0, float("nan")]}}, "has an invalid shape or place"),
        ({"a": {**_TENSOR, "shape": [1] * 65}}, "is not what its shape needs"),
        ('{"a": {}, "a": {}}', "a name is there twice"),
        ("[" * 100_000, "RecursionError"),
        ('{"a":[' + "{}," * 5_000_001 + "{}]}", "more than 10000000 values"),
    ],
    ids=lambda value: "" if isinstance(value, str | dict) else None,
)
def test_check_and_advise_refuse_the_same_safetensors(header: object, said: str, tmp_path: Path) -> None:
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    (tmp_path / "a.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))
    assert said in next(safetensors_problems(tmp_path))[1]
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    with pytest.raises(InvalidRequest) as refused:
        read_checkpoint(tmp_path)
    assert said in str(refused.value)


def test_advise_refuses_safetensors_that_are_cut_off(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    safetensors(tmp_path / "a.safetensors", {"x": 8, "y": 4}, cut=4)
    with pytest.raises(InvalidRequest, match=r"has .* bytes, but its tensors end at byte"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"model.safetensors.index.json": '{"metadata": {"total_size": 1e999}, "weight_map": {}}'},
        {"model.safetensors.index.json": '{"metadata": [1], "weight_map": {}}'},
        {"config.json": json.dumps({**LLAMA, "text_config": 5})},
    ],
)
def test_advise_reads_what_is_not_valid_as_missing(change: dict[str, str], tmp_path: Path) -> None:
    for name, text in {"config.json": json.dumps(LLAMA), **change}.items():
        (tmp_path / name).write_text(text)
    assert read_checkpoint(tmp_path).source == "2 bytes for each parameter"


@pytest.mark.parametrize("bits", [float("inf"), 10**300, -1])
def test_advise_refuses_bits_that_cannot_be(bits: float, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "quantization_config": {"bits": bits}}))
    with pytest.raises(InvalidRequest, match="unknown quantization_config"):
        read_checkpoint(tmp_path)


def test_a_checkpoint_that_is_cut_off_and_its_context(tmp_path: Path) -> None:
    write(tmp_path / "m" / "config.pbtxt", 'backend: "vllm"\n')
    write(tmp_path / "m" / "1" / "model.json", '{"model": "weights", "max_model_len": 8192}')
    write(tmp_path / "m" / "1" / "weights" / "config.json", '{"max_position_embeddings": 4096}')
    safetensors(tmp_path / "m" / "1" / "weights" / "model.safetensors", {"x": 8}, cut=4)
    messages = {finding.rule.id: finding.message for finding in findings_of(tmp_path)}
    assert messages.keys() == {"context-length", "file-damaged"}
    assert "8192" in messages["context-length"]
    assert "tensors end at byte" in messages["file-damaged"]
