"""`conch repo add`: models from files, folders and a Hub, then served."""

import fcntl
import json
import os
import pty
import resource
import shutil
import struct
import subprocess
import sys
import termios
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import openvino as ov
import pytest
import tritonclient.http as triton
from huggingface_hub import constants
from onnx import TensorProto, helper, numpy_helper

from conch.base.extras import install_command
from conch.check.command import check
from conch.clients.repository.command import repo
from conch.server.repository.model_kinds import find_file
from tests.server.backends.engines.gguf_model import write_gguf
from tests.server.backends.fil.test_fil import features, train
from tests.server.backends.onnxruntime.onnx_models import FP32, write_identity
from tests.server.backends.pytorch.torch_models import Doubled, write_script
from tests.server.hub import Hub
from tests.support.encoders import write_encoder, write_tokenizer
from tests.support.server_process import ConchProcess

# The library that runs GGUF files writes them as IR with a tokenizer, too.
SAVE_IR = "import sys, openvino_genai; openvino_genai.LLMPipeline(sys.argv[1], 'CPU', enable_save_ov_model=True)"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 1\n"


def safetensors(name: str) -> bytes:
    """A file of one tensor of one number."""
    header = json.dumps({name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(4)


def add(*arguments: Any) -> int:
    return repo(["add", *map(str, arguments)])


def tree(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())


def write_weighted(path: Path) -> None:
    """Write an ONNX model that adds a table to its input and keeps the table in a file beside it."""
    table = numpy_helper.from_array(np.arange(400, dtype=np.float32), "TABLE")
    graph = helper.make_graph(
        [helper.make_node("Add", ["IN", "TABLE"], ["OUT"])],
        "graph",
        [helper.make_tensor_value_info("IN", TensorProto.FLOAT, ["n", 400])],
        [helper.make_tensor_value_info("OUT", TensorProto.FLOAT, ["n", 400])],
        initializer=[table],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path, save_as_external_data=True, location="table.data", size_threshold=0)


def test_what_was_added_is_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = tmp_path / "deep" / "models"
    gguf = write_gguf(tmp_path / "small.gguf")
    assert add(gguf, "--repository", models) == 0
    assert f"conch serve --model-repository={models}" in capsys.readouterr().out
    (tmp_path / "ir").mkdir()
    os.link(gguf, tmp_path / "ir" / "small.gguf")
    subprocess.run([sys.executable, "-c", SAVE_IR, tmp_path / "ir" / "small.gguf"], check=True, timeout=120)
    assert add(tmp_path / "ir", "--repository", models, "--link") == 0
    assert (models / "ir" / "1" / "openvino_model.bin").is_symlink()
    write_weighted(tmp_path / "weighted.onnx")
    assert add(tmp_path / "weighted.onnx", "--repository", models) == 0
    write_identity(tmp_path / "same", FP32, ["n", 400])
    assert add(tmp_path / "same" / "1" / "model.onnx", "--repository", models, "--backend", "openvino") == 0
    ov.save_model(ov.convert_model(tmp_path / "same" / "1" / "model.onnx"), tmp_path / "net.xml")
    assert add(tmp_path / "net.xml", "--repository", models) == 0
    script = write_script(tmp_path / "script", Doubled(), "") / "1" / "model.pt"
    tensors = ("--input", "IN:FP32:400", "--output", "OUT:TYPE_FP32:400", "--max-batch-size", 8)
    assert add(script, "--repository", models, *tensors) == 0

    assert tree(models / "weighted") == ["1/model.onnx", "1/table.data"]
    assert tree(models / "small") == ["1/model.gguf", "config.pbtxt"]
    assert not any(name.endswith(".gguf") for name in tree(models / "ir"))
    assert check(["--strict", str(models)]) == 0

    with ConchProcess(models, log=tmp_path / "log") as server:
        for name in ("small", "ir"):
            body = json.dumps({"text_input": "Hello", "parameters": {"max_tokens": 3, "temperature": 0}})
            url = f"http://{server.http}/v2/models/{name}/generate"
            with urllib.request.urlopen(url, body.encode(), timeout=60) as response:
                assert json.loads(response.read())["text_output"].startswith("Hello")
        row = np.ones((1, 400), np.float32)
        results = {"weighted": row + np.arange(400), "same": row, "net": row, "script": row * 2}
        with triton.InferenceServerClient(server.http) as client:
            for name, result in results.items():
                tensor = triton.InferInput("IN", [1, 400], "FP32")
                tensor.set_data_from_numpy(row)
                assert (client.infer(name, [tensor]).as_numpy("OUT") == result).all()


def test_a_models_folder_is_copied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "mine" / "same"
    write_identity(source, FP32, ["n", 400])
    (source / "1" / "__pycache__").mkdir()
    models = tmp_path / "models"
    assert add(source, "--repository", models) == 0, capsys.readouterr().err
    assert tree(models) == [f"same/{name}" for name in tree(source)]
    assert f"conch serve --model-repository={models}" in capsys.readouterr().out
    assert add(source, "--repository", models) == 1
    assert "--force replaces it" in capsys.readouterr().err
    assert add(source, "--repository", models, "--force", "--link") == 0
    assert (models / "same" / "1" / "model.onnx").is_symlink()
    assert add(source, "--repository", models, "--name", "other", "--backend", "openvino") == 1
    assert "config.pbtxt has the backend" in capsys.readouterr().err
    assert add(models / "same", "--repository", models, "--force") == 1
    assert "cannot be added to itself" in capsys.readouterr().err


def test_a_models_folder_takes_another_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "mine"
    write_identity(source, FP32, ["n", 400])
    config = 'backend: "onnxruntime"\nmetric_tags { key: "name" value: "mine" }\n'
    (source / "config.pbtxt").write_text('name: "mine"\n' + config)
    for flag in ((), ("--link",)):
        assert add(source, "--repository", tmp_path / "models", "--name", "other", "--force", *flag) == 0
        assert (tmp_path / "models" / "other" / "config.pbtxt").read_text() == config
        assert (source / "config.pbtxt").read_text().startswith('name: "mine"')
    assert check(["--strict", str(tmp_path / "models")]) == 0


def test_an_ensemble_is_added_before_or_after_its_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    examples = Path(__file__).parents[2] / "examples" / "models"
    missing = "note: ensemble 'sentences': step 0 names model 'sentence_tokens', which does not exist"
    assert add(examples / "sentences", "--repository", tmp_path) == 0
    assert missing in capsys.readouterr().out
    for step in ("sentence_tokens", "sentence_encoder"):
        assert add(examples / step, "--repository", tmp_path) == 0
    assert add(examples / "sentences", "--repository", tmp_path, "--force") == 0
    assert "note:" not in capsys.readouterr().out


def test_a_repository_is_not_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_identity(tmp_path / "all" / "one", FP32, ["n", 400])
    assert add(tmp_path / "all", "--repository", tmp_path / "models") == 1
    said = capsys.readouterr().err
    assert f"'{tmp_path}/all' is a repository, not a model" in said
    assert said.endswith(f"add one of its models: {tmp_path}/all/one\n")


def write_zipmap(path: Path) -> None:
    """Write what skl2onnx makes of a classifier: labels, and a map of probabilities for each row."""
    vector = helper.make_tensor_value_info("X", TensorProto.FLOAT, [None, 2])
    value = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    probabilities = helper.make_value_info(
        "output_probability", helper.make_sequence_type_proto(helper.make_map_type_proto(TensorProto.INT64, value))
    )
    node = helper.make_node("ZipMap", ["X"], ["output_probability"], domain="ai.onnx.ml", classlabels_int64s=[0, 1])
    graph = helper.make_graph([node], "graph", [vector], [probabilities])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)


def test_a_classifier_with_zipmap_is_refused_with_the_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_zipmap(tmp_path / "iris.onnx")
    assert add(tmp_path / "iris.onnx", "--repository", tmp_path / "models") == 1
    said = capsys.readouterr().err
    assert "output 'output_probability' is seq(map(" in said
    assert "options={'zipmap': False}" in said
    assert not (tmp_path / "models").exists()


def test_a_checkpoint_is_for_vllm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "llama"
    source.mkdir()
    for name in ("config.json", "tokenizer.json", "README.md", "pytorch_model.bin"):
        (source / name).write_text("{}")
    (source / "a.safetensors").write_bytes(safetensors("w"))
    index = source / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": "a.safetensors", "v": "b.safetensors"}}))
    models = tmp_path / "models"
    assert add(source, "--repository", models) == 1
    assert "not complete: b.safetensors is missing, one of 2 files" in capsys.readouterr().err
    (source / "b.safetensors").write_bytes(safetensors("v"))
    assert add(source, "--repository", models, "--backend", "openvino_genai") == 1
    assert f"optimum-cli export openvino --model {source} FOLDER" in capsys.readouterr().err
    assert add(source, "--repository", models) == 0
    assert "optimum-cli export openvino" in capsys.readouterr().out
    copied = [f"1/checkpoint/{name}" for name in ("a.safetensors", "b.safetensors", "config.json")]
    copied += ["1/checkpoint/model.safetensors.index.json", "1/checkpoint/tokenizer.json"]
    assert tree(models / "llama") == [*copied, "1/model.json", "config.pbtxt"]
    assert json.loads((models / "llama" / "1" / "model.json").read_text()) == {"model": "checkpoint"}
    assert (models / "llama" / "config.pbtxt").read_text() == 'backend: "vllm"\n'
    assert add(source, "--repository", models, "--backend", "tensorrtllm", "--name", "trt") == 0
    assert check(["--strict", str(models)]) == 0


def test_an_encoder_s_checkpoint_is_a_model_of_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hub = write_encoder(tmp_path / "ranker", labels=1)
    write_tokenizer(hub)
    for name in ("model.safetensors", "README.md"):
        (hub / name).write_bytes(safetensors("w"))
    (hub / "onnx").mkdir()
    (hub / "model.onnx").rename(hub / "onnx" / "model.onnx")
    models = tmp_path / "models"
    # Without the export it is one of vLLM's pooling models.
    (hub / "onnx").rename(tmp_path / "aside")
    assert add(hub, "--repository", models, "--name", "pooling", "--backend", "tensorrtllm") == 1
    assert "--backend tensorrtllm does not support this model: use vllm" in capsys.readouterr().err
    assert add(hub, "--repository", models, "--name", "pooling") == 0
    arguments = json.loads((models / "pooling" / "1" / "model.json").read_text())
    assert arguments == {"model": "checkpoint", "runner": "pooling"}
    shutil.rmtree(models)
    (tmp_path / "aside").rename(hub / "onnx")
    assert add(hub, "--repository", models) == 0
    assert add(hub / "onnx" / "model.onnx", "--repository", models, "--name", "file") == 0
    assert "serve:" in capsys.readouterr().out
    files = ("1/config.json", "1/model.onnx", "1/tokenizer.json", "config.pbtxt")
    assert tree(models) == [f"{name}/{file}" for name in ("file", "ranker") for file in files]
    config = 'backend: "onnxruntime"\nmax_batch_size: 32\ndynamic_batching { }\n'
    assert (models / "ranker" / "config.pbtxt").read_text() == config
    names = ["config.json", "model.safetensors", "onnx/model.onnx", "onnx/model_q4.onnx", "tokenizer.json"]
    assert find_file(names, "onnx/model.onnx", "hub").names == ("onnx/model.onnx", "config.json", "tokenizer.json")


def test_names_stay_inside_and_existing_models_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = tmp_path / "models"
    gguf = write_gguf(tmp_path / "small.gguf")
    for name in ("../out", "a/b", "..", ".", "/out", ".hidden", "x" * 300, "nul\0"):
        assert add(gguf, "--repository", models, f"--name={name}") == 1
        assert "model name" in capsys.readouterr().err
    assert tree(tmp_path) == ["small.gguf"]
    assert add(gguf, "--repository", models, "--name", "m") == 0
    (models / "m" / "kept").touch()
    assert add(gguf, "--repository", models, "--name", "m") == 1
    assert "--force replaces it" in capsys.readouterr().err
    assert (models / "m" / "kept").exists()
    # A model may be recreated from itself, but not be a link to what it replaces.
    copied = models / "m" / "1" / "model.gguf"
    assert add(copied, "--repository", models, "--name", "m", "--force", "--link") == 1
    assert add(copied, "--repository", models, "--force") == 0
    assert tree(models) == ["m/1/model.gguf", "m/config.pbtxt"]
    assert copied.read_bytes() == gguf.read_bytes()
    assert [path.name for path in models.iterdir()] == ["m"]


def test_a_forest_of_any_name_is_recognized_by_its_content(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    churn, churn_expected = train("xgboost", "two")
    churn.save_model(tmp_path / "churn.json")
    risk, risk_expected = train("lightgbm", "two")
    risk.save_model(tmp_path / "risk.txt")
    for source, written in (("churn.json", "xgboost.json"), ("risk.txt", "model.txt")):
        assert add("--repository", tmp_path / "models", tmp_path / source) == 0
        assert tree(tmp_path / "models" / Path(source).stem) == [f"1/{written}", "config.pbtxt"]
    capsys.readouterr()
    (tmp_path / "notes.json").write_text('{"title": "no forest"}')
    assert add("--repository", tmp_path / "models", tmp_path / "notes.json") == 1
    error = capsys.readouterr().err
    assert "'" + str(tmp_path / "notes.json") + "' is not a model" in error
    assert "a forest of XGBoost or LightGBM" in error
    with (
        ConchProcess(tmp_path / "models", log=tmp_path / "log") as server,
        triton.InferenceServerClient(server.http) as client,
    ):
        for name, expected in (("churn", churn_expected), ("risk", risk_expected)):
            got = []
            for rows in np.split(features(), 75):  # the default batch limit is 4
                given = triton.InferInput("input__0", [*rows.shape], "FP32")
                given.set_data_from_numpy(rows)
                got.append(client.infer(name, [given]).as_numpy("output__0"))
            np.testing.assert_allclose(np.concatenate(got).ravel(), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("datatype", "problem"),
    [("FP3", "unknown datatype 'FP3'; did you mean 'FP32'?"), ("QUUX", "unknown datatype 'QUUX'; expected BF16, BOOL")],
)
def test_a_misspelt_datatype_is_named(
    datatype: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_identity(tmp_path / "identity", FP32, ["n", 4]) / "1" / "model.onnx"
    assert add("--repository", tmp_path / "models", "--name=m", f"--input=x:{datatype}:2", model) == 1
    assert f"--input x: {problem}" in capsys.readouterr().err


def test_a_list_splits_no_name_on_a_terminal_of_80_columns(tmp_path: Path) -> None:
    name = "a_detector_of_scratches_on_metal_plates"
    model = write_identity(tmp_path / "identity", FP32, ["n", 4]) / "1" / "model.onnx"
    assert add("--repository", tmp_path / "models", "--name", name, model) == 0
    for columns, has_tensors in ((80, False), (160, True)):
        terminal, lines = pty.openpty()
        fcntl.ioctl(lines, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        command = [sys.executable, "-m", "conch", "repo", "list", tmp_path / "models"]
        environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
        done = subprocess.run(command, stdin=lines, stdout=lines, env=environment, check=True, timeout=60)
        os.close(lines)
        text = b""
        with suppress(OSError):  # Linux ends the reading of a closed terminal in EIO
            while data := os.read(terminal, 65536):
                text += data
        os.close(terminal)
        assert done.returncode == 0
        assert name in text.decode()
        assert ("outputs" in text.decode().splitlines()[1]) is has_tensors


@pytest.mark.parametrize(
    ("files", "source", "words"),
    [
        ({}, "missing.gguf", "is not a file or folder"),
        ({"a.gguf": b"nothing"}, "a.gguf", "is not a GGUF file"),
        (
            {"a.gguf": b"GGUF" + b"?" * 99},
            "a.gguf",
            "model 'a' is not a GGUF file, or is damaged: version",
        ),
        (
            {"a.gguf": b"GGUF\3\0\0\0" + b"?" * 99},
            "a.gguf",
            "model 'a' is not a GGUF file, or is damaged",
        ),
        ({"a.gguf": b""}, "a.gguf", "is empty"),
        ({"a.gguf": POINTER}, "a.gguf", "git lfs pull"),
        ({"a-00001-of-00002.gguf": b"GGUF"}, "a-00001-of-00002.gguf", "llama-gguf-split --merge"),
        ({"a.onnx": b"nothing"}, "a.onnx", "is not a valid ONNX model"),
        ({"a.xml": b"<net/>"}, "a.xml", "in 'a.bin', which is not in the same folder"),
        ({"a.xml": b"<svg/>", "a.bin": b"1"}, "a.xml", "is not OpenVINO IR"),
        ({"a.pt": b"\x80\x02"}, "a.pt", "is a pickle"),
        ({"a.txt": b"?"}, "a.txt", "is not a model: expected .gguf, .onnx, .xml, .pt, .pth, .pt2"),
        ({"a.txt": b"?"}, "", "contains no model"),
        ({"a.gguf": b"GGUF", "b.gguf": b"GGUF"}, "", "choose one: a.gguf, b.gguf"),
        ({"config.pbtxt": b""}, "", "Could not determine backend for model"),
        ({"openvino_model.xml": b"<net/>", "openvino_tokenizer.xml": b"<net/>"}, "", "openvino_model.bin is missing"),
    ],
)
def test_data_that_is_not_a_model_is_refused_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], files: dict[str, bytes], source: str, words: str
) -> None:
    (tmp_path / "source").mkdir()
    for name, content in files.items():
        (tmp_path / "source" / name).write_bytes(content)
    assert add(tmp_path / "source" / source, "--repository", tmp_path / "models") == 1
    assert words in capsys.readouterr().err
    assert not (tmp_path / "models").exists()


def test_incompatible_options_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gguf = write_gguf(tmp_path / "small.gguf")
    script = write_script(tmp_path / "script", Doubled(), "") / "1" / "model.pt"
    models = tmp_path / "models"
    for arguments, words in {
        (gguf, "--backend", "onnxruntime"): "--backend onnxruntime does not support this model: use openvino_genai",
        (gguf, "--input", "x:FP32:1"): "leave out --input",
        (script,): "add --input for each argument",
        (script, "--input", "IN:FP33:4", "--output", "OUT:FP32:4"): "FP33",
        (script, "--input", "IN:FP32:0", "--output", "OUT:FP32:4"): "dims",
    }.items():
        assert add(*arguments, "--repository", models) == 1
        assert words in capsys.readouterr().err
    assert not models.exists()
    with pytest.raises(SystemExit, match="2"):
        add(script, "--input", "IN:FP32:x")


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    gguf = write_gguf(tmp_path / "small.gguf")
    result = subprocess.run(
        [sys.executable, "-m", "conch", "repo", "add", gguf, "--repository", tmp_path / "models"],
        # Of each file, half of the model's size is the most.
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (gguf.stat().st_size // 2,) * 2),
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 1
    assert result.stderr == f"conch repo add: '{tmp_path}/models/small' cannot be written: File too large\n"
    assert not (tmp_path / "models").exists()


def from_hub(hub: Hub, home: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a separate process: the Hub's library reads its environment when it is imported."""
    settings = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(home / "hf"), "HF_HUB_DISABLE_TELEMETRY": "1"}
    return subprocess.run(
        [sys.executable, "-m", "conch", "repo", "add", *arguments, "--repository", home / "models"],
        env={**os.environ, **settings, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_models_come_from_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gguf = write_gguf(tmp_path / "small.gguf").read_bytes()
    models = {
        "team/one-GGUF": {"README.md": b"#", "sub/one-Q8_0.gguf": gguf},
        "team/many-GGUF": {"many-Q4.gguf": b"GGUF4", "many-Q8.gguf": gguf},
        "team/llama": {
            name: safetensors("w") if name.endswith(".safetensors") else json.dumps({"file": name}).encode()
            for name in (
                *("config.json", "model.safetensors", "tokenizer.json"),
                *("original/model.pth", "pytorch_model.bin", "onnx/model.onnx"),
            )
        },
    }
    with Hub(models) as hub:
        result = from_hub(hub, tmp_path, "hf://team/one-GGUF")
        assert result.returncode == 0, result.stderr
        assert f"fetching sub/one-Q8_0.gguf of team/one-GGUF at c0ffee000000 from {hub.endpoint}" in result.stdout
        monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
        assert add("hf://team/many-GGUF", "--repository", tmp_path / "models") == 1
        assert "contains several models; choose one: many-Q4.gguf, many-Q8.gguf" in capsys.readouterr().err
        assert from_hub(hub, tmp_path, "hf://team/many-GGUF@v1/many-Q8.gguf").returncode == 0
        assert from_hub(hub, tmp_path, "hf://team/llama@main").returncode == 0
        assert sorted(hub.fetched) == [
            *("config.json", "many-Q8.gguf", "model.safetensors", "sub/one-Q8_0.gguf", "tokenizer.json"),
        ]
        assert from_hub(hub, tmp_path, "team/llama", "--name", "again").returncode == 0  # hf:// goes without saying
        # What is there already is refused before anything is fetched.
        assert add("hf://team/many-GGUF/many-Q4.gguf", "--name", "llama", "--repository", tmp_path / "models") == 1
        assert len(hub.fetched) == 5
    written = ("1/checkpoint/config.json", "1/checkpoint/model.safetensors", "1/checkpoint/tokenizer.json")
    written += ("1/model.json", "config.pbtxt")  # type: ignore[assignment]
    assert tree(tmp_path / "models") == [
        *(f"again/{name}" for name in written),
        *(f"llama/{name}" for name in written[:3]),
        *("llama/1/model.json", "llama/config.pbtxt", "many-Q8/1/model.gguf", "many-Q8/config.pbtxt"),
        *("one-GGUF/1/model.gguf", "one-GGUF/config.pbtxt"),
    ]
    served = tmp_path / "models" / "one-GGUF" / "1" / "model.gguf"
    assert served.read_bytes() == gguf
    # The disk holds it once, and the Hub's cache may be removed.
    assert (served.stat().st_nlink, served.is_symlink()) == (2, False)


def test_errors_of_the_hub_are_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(source: str, *words: str) -> None:
        assert add(source, "--repository", tmp_path / "models") == 1
        said = capsys.readouterr().err
        assert all(word in said for word in words), said

    with Hub({"team/one": {"one.gguf": b"GGUF"}}, gated=frozenset({"meta/llama"})) as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
        refused("hf://team/none", f"{hub.endpoint}/team/none does not exist, or it is private")
        refused("hf://team/one@v9", "has no revision 'v9'")
        refused("hf://team/one/two.gguf", "team/one has no file 'two.gguf'; found one.gguf")
        refused("hf://meta/llama", f"{hub.endpoint}/meta/llama is gated: accept its terms there, and set HF_TOKEN")
        for wrong in ("hf://", "hf://team", "hf://team/one/../two.gguf"):
            refused(wrong, "expected hf://org/name")
    refused("team/one", "no file or folder 'team/one', and hf://team/one failed", "HF_ENDPOINT to a mirror")
    refused("hf://team/one", "HF_ENDPOINT to a mirror", "add their path")  # now there is no Hub
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.delitem(sys.modules, "conch.clients.repository.hub_download")
    refused("hf://team/one", install_command("hub"), "add their path")
    assert not (tmp_path / "models").exists()
