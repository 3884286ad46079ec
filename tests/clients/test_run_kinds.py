"""Every kind of X that `conch run X` takes is served and answers, and what is not a model is named."""

import json
import os
import urllib.request
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from conch.base.errors import ConchError, InvalidRequest
from conch.clients.run.command import run_parser
from conch.clients.run.memory import check_memory
from conch.clients.run.source import RunSource, chats, find_source
from tests.clients.running import ASCII_ONLY, conch
from tests.server.backends.engines.gguf_model import write_gguf
from tests.server.backends.engines.ir_model import write_ir
from tests.server.backends.makers import PYTHON, onnx_doubling
from tests.support.server_process import ConchProcess

NEEDED = "writes models with packages of the dev-all extra"
joblib = pytest.importorskip("joblib", reason=NEEDED)
lightgbm = pytest.importorskip("lightgbm", reason=NEEDED)
ov = pytest.importorskip("openvino", reason=NEEDED)
sklearn_linear = pytest.importorskip("sklearn.linear_model", reason=NEEDED)
treelite = pytest.importorskip("treelite", reason=NEEDED)
xgboost = pytest.importorskip("xgboost", reason=NEEDED)

# Of torch.jit.save (IN * 2) and torch.export.save (IN @ weight), whose imports take seconds.
TORCH_FILES = Path(__file__).parent / "torch_files"
TORCH = ("--input=IN:FP32:-1,3", "--output=OUT:FP32:-1,3")
PICKLED = ("--allow-pickled-models",)
APP = """import conch
import numpy as np

@conch.model
def app(IN: np.ndarray) -> np.ndarray:
    return IN * 2
"""
_FEATURES = np.random.default_rng(7).normal(size=(60, 3)).astype(np.float32)
_LABELS = (_FEATURES.sum(axis=1) > 0).astype(int)


def field(number: int, content: "int | str | bytes") -> bytes:
    """A field of protobuf."""
    if isinstance(content, int):
        return bytes([number << 3, content])
    data = content.encode() if isinstance(content, str) else content
    size = bytes([len(data)]) if len(data) < 128 else bytes([len(data) & 127 | 128, len(data) >> 7])
    return bytes([number << 3 | 2]) + size + data


def saved_model(folder: Path) -> Path:
    """A SavedModel of TensorFlow that doubles four numbers."""
    shape, number = field(2, field(1, 4)), field(6, 1)

    def attribute(name: str, value: bytes) -> bytes:
        return field(5, field(1, name) + field(2, value))

    def tensor(name: str) -> bytes:
        return field(1, name) + field(2, 1) + field(3, shape)

    node = field(1, "IN") + field(2, "Placeholder") + attribute("dtype", number) + attribute("shape", field(7, shape))
    total = field(1, "OUT") + field(2, "Add") + field(3, "IN") + field(3, "IN") + attribute("T", number)
    inputs, outputs = (field(1, name) + field(2, tensor(f"{name}:0")) for name in ("IN", "OUT"))
    signature = field(1, inputs) + field(2, outputs) + field(3, "tensorflow/serving/predict")
    graph = field(1, node) + field(1, total)
    meta = field(1, field(4, "serve")) + field(2, graph) + field(5, field(1, "serving_default") + field(2, signature))
    (folder / "variables").mkdir(parents=True)
    (folder / "saved_model.pb").write_bytes(field(1, 1) + field(2, meta))
    return folder


def onnx_file(folder: Path, name: str) -> Path:
    onnx_doubling(folder / "made", ["n", 3])
    return (folder / "made/1/model.onnx").rename(folder / name)


def external_weights(folder: Path) -> Path:
    """A folder with an ONNX file and its weights in another one."""
    table = onnx.numpy_helper.from_array(np.arange(400, dtype=np.float32), "TABLE")
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Add", ["IN", "TABLE"], ["OUT"])],
        "weighted",
        [onnx.helper.make_tensor_value_info("IN", onnx.TensorProto.FLOAT, ["n", 400])],
        [onnx.helper.make_tensor_value_info("OUT", onnx.TensorProto.FLOAT, ["n", 400])],
        initializer=[table],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)
    folder.mkdir()
    onnx.save(model, folder / "w.onnx", save_as_external_data=True, location="w.onnx.data", size_threshold=0)
    return folder


def made(folder: Path) -> dict[str, tuple[Path, tuple[str, ...]]]:
    """Make one model of every kind: its name → the path, and flags for what the file does not say."""
    booster = xgboost.train({"max_depth": 2}, xgboost.DMatrix(_FEATURES, _LABELS), 2)
    trees = lightgbm.train({"verbose": -1}, lightgbm.Dataset(_FEATURES, _LABELS), 2)
    for name in ("xgb.json", "xgb_binary.ubj"):
        booster.save_model(folder / name)
    for name in ("lgb.txt", "boosted.bst"):
        trees.save_model(folder / name)
    treelite.frontend.from_xgboost(booster).serialize(folder / "trees.tl")
    estimator = sklearn_linear.LogisticRegression().fit(_FEATURES, _LABELS)
    for name in ("sk.joblib", "pickled.pkl"):
        joblib.dump(estimator, folder / name)
    plain = onnx_file(folder, "plain.onnx")
    ov.save_model(ov.convert_model(plain), folder / "ir.xml")
    (folder / "triton.py").write_text(PYTHON.replace("DIM", "3"))
    (folder / "app.py").write_text(APP)
    (folder / "repository/inside/1").mkdir(parents=True)
    onnx_file(folder / "repository", "x").rename(folder / "repository/inside/1/model.onnx")
    (folder / "entry/1").mkdir(parents=True)
    (folder / "entry/1/model.onnx").write_bytes((folder / "repository/inside/1/model.onnx").read_bytes())
    (folder / "entry/config.pbtxt").write_text("max_batch_size: 4")
    (folder / "repository/made/1").rmdir()
    (folder / "repository/made").rmdir()
    return {
        "plain": (plain, ()),
        "on_openvino": (plain, ("--name=on_openvino", "--backend=openvino")),
        "ir": (folder / "ir.xml", ()),
        "tensorflow": (saved_model(folder / "tensorflow"), ()),
        "weights": (external_weights(folder / "weights"), ()),
        "torch": (TORCH_FILES / "torch.pt", TORCH),
        "exported": (TORCH_FILES / "exported.pt2", ()),
        "xgb": (folder / "xgb.json", ()),
        "xgb_binary": (folder / "xgb_binary.ubj", ()),
        "lgb": (folder / "lgb.txt", ()),
        "trees": (folder / "trees.tl", ()),
        "sk": (folder / "sk.joblib", PICKLED),
        "pickled": (folder / "pickled.pkl", PICKLED),
        "words": (write_gguf(folder / "words.gguf"), ()),
        "spoken": (write_ir(folder / "spoken", folder / "words.gguf"), ()),
        "triton": (folder / "triton.py", ()),
        "app": (folder / "app.py", ()),
        "inside": (folder / "repository", ()),
        "entry": (folder / "entry", ()),
        "boosted": (folder / "boosted.bst", ()),
    }


def test_folders_of_language_models_are_recognized(tmp_path: Path) -> None:
    tensor = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    checkpoint, representation = tmp_path / "llama", tmp_path / "gemma"
    for folder, files in (
        (
            checkpoint,
            {"config.json": b"{}", "model.safetensors": len(tensor).to_bytes(8, "little") + tensor + bytes(4)},
        ),
        (
            representation,
            dict.fromkeys(("openvino_model.xml", "openvino_tokenizer.xml", "openvino_model.bin"), b"<net/>"),
        ),
    ):
        folder.mkdir()
        for name, content in files.items():
            (folder / name).write_bytes(content)
    for name in ("openvino_tokenizer.bin", "openvino_detokenizer.xml", "openvino_detokenizer.bin"):
        (representation / name).write_bytes(b"<net/>")
    models = [find_source(given(str(folder))).models()[0] for folder in (checkpoint, representation)]
    assert [(model.name, model.config.backend) for model in models] == [("llama", "vllm"), ("gemma", "openvino_genai")]
    assert all(map(chats, models))


def given(*arguments: str) -> Namespace:
    return run_parser().parse_args(arguments)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunSource]:
    folder = tmp_path_factory.mktemp("kinds")
    return {name: find_source(given(str(path), *flags)) for name, (path, flags) in made(folder).items()}


@pytest.fixture(scope="module")
def server(sources: dict[str, RunSource], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    flags = [flag for source in sources.values() for flag in source.flags]
    first = Path(flags.pop(0).partition("=")[2])
    with ConchProcess(first, *flags, log=tmp_path_factory.mktemp("log") / "log") as server:
        yield server


def asked(url: str, body: Any = None) -> Any:
    with urllib.request.urlopen(url, None if body is None else json.dumps(body).encode(), timeout=60) as response:
        return json.load(response)


KINDS = (
    *("plain", "on_openvino", "ir", "tensorflow", "weights", "torch", "exported", "xgb", "xgb_binary", "lgb", "trees"),
    *("sk", "pickled", "words", "spoken", "triton", "app", "inside", "entry", "boosted"),
)


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_answers(name: str, sources: dict[str, RunSource], server: ConchProcess) -> None:
    url = f"http://{server.http}/v2/models/{name}"
    if name in ("words", "spoken"):
        assert asked(f"{url}/generate", {"text_input": "a", "parameters": {"max_tokens": 1}})["text_output"]
        return
    inputs = [
        {**tensor, "shape": shape, "data": [1] * int(np.prod(shape))}
        for tensor in asked(url)["inputs"]
        for shape in [[max(1, size) if size > 0 else 3 if index else 1 for index, size in enumerate(tensor["shape"])]]
    ]
    assert asked(f"{url}/infer", {"inputs": inputs})["outputs"][0]["data"]


@pytest.mark.parametrize("name", KINDS)
def test_memory_of_every_kind_is_estimated_before_it_is_loaded(name: str, sources: dict[str, RunSource]) -> None:
    models = sources[name].models()
    assert check_memory(models, lambda: 1 << 50) > 100 << 20
    for files in models:
        with pytest.raises(ConchError, match=rf"too little memory: '{name}' needs about .* and 1 MiB are free; "):
            check_memory([files], lambda: 1 << 20)


NOT_MODELS: dict[str, tuple[bytes, str]] = {
    "a.zip": (b"PK\x03\x04rest", "is a ZIP archive: unpack it"),
    "a.onnx": (b"PK\x03\x04rest", "is a ZIP archive: unpack it"),
    "photo.onnx": (b"\x89PNG\r\n", "is an image (PNG)"),
    "photo": (b"\xff\xd8\xff\xe0", "is an image (JPEG)"),
    "pointer.gguf": (
        b"version https://git-lfs.github.com/spec/v1\n",
        "is a Git LFS pointer, not the file: run git lfs",
    ),
    "page.gguf": (b"\n<!DOCTYPE html><html>", "is a web page: the download needs a login"),
    "page.safetensors": (b"<html lang=en>", "is a web page: the download needs a login"),
    "empty.onnx": (b"", "is empty"),
    "empty": (b"", "is empty"),
    "paper.pdf": (b"%PDF-1.7", "is a PDF document"),
    "packed.gguf": (b"\x1f\x8b\x08", "is compressed with gzip: unpack it"),
    "state.pth": (b"PK\x03\x04rest", "is damaged or not a PyTorch file"),
    "a.keras": (b"PK\x03\x04rest", "is a Keras model: model.export(FOLDER)"),
    "a.h5": (b"\x89HDF", "is a Keras model"),
    "a.tflite": (b"\x1c\x00\x00\x00TFL3", "is a TensorFlow Lite model: ovc"),
    "saved_model.pb": (b"\x08\x01", "is part of a TensorFlow model: name the folder"),
    "model.safetensors": (b"\x08\x00", "is a file of weights: name its folder"),
    "a.engine": (b"ftrt", "is a TensorRT plan"),
    "program": (b"\x7fELF\x02", "is a program or library"),
    "notes.md": (b"# Notes", "is not a model: expected .gguf, .onnx"),
    "script.py": (b"print(1)", "has no model: expected functions or classes with @conch.model"),
    "broken.py": (b"x = (", "is not valid Python, line 1: '(' was never closed"),
    "language.onnx": (b"GGUF\x03\x00", "is a GGUF file: let its name end with .gguf"),
    "a.pkl": (b"\x80\x04", "--allow-pickled-models"),
}


@pytest.mark.parametrize("name", NOT_MODELS)
def test_what_is_not_a_model_is_named(name: str, tmp_path: Path) -> None:
    content, words = NOT_MODELS[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConchError) as caught:
        find_source(given(str(tmp_path / name)))
    assert f"'{tmp_path / name}' {'is' if words.startswith('--') else ''}" in caught.value.message
    assert words in caught.value.message


def test_what_cannot_be_opened_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.onnx")
    (tmp_path / "link.onnx").symlink_to("missing.onnx")
    paths = {"pipe.onnx": "is not a regular file", "link.onnx": "is a symbolic link to 'missing.onnx', which is"}
    for name, words in {**paths, "x" * 300: "cannot be read: File name too long"}.items():
        with pytest.raises(ConchError) as caught:
            find_source(given(str(tmp_path / name)))
        assert f"'{tmp_path / name}' {words}" in caught.value.message


def test_a_folder_without_a_model_near_its_top_is_refused_without_a_scan_below(tmp_path: Path) -> None:
    (tmp_path / "proc" / "1").mkdir(parents=True)
    (tmp_path / "photos" / "2024" / "summer").mkdir(parents=True)
    (tmp_path / "home" / "files").mkdir(parents=True)
    with pytest.raises(InvalidRequest, match=f"'{tmp_path}' contains no model: expected "):
        find_source(given(str(tmp_path)))
    (tmp_path / "home" / "m" / "1").mkdir(parents=True)
    (tmp_path / "home" / "m" / "1" / "model.py").touch()
    with pytest.raises(InvalidRequest, match=f"; '{tmp_path / 'home'}' is a model repository$"):
        find_source(given(str(tmp_path)))
    assert find_source(given(str(tmp_path / "home"))).flags == (f"--model-repository={tmp_path / 'home'}",)


def test_a_link_to_itself_in_a_repository_is_named(tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "config.pbtxt").touch()
    (tmp_path / "again").symlink_to("again")
    words = f"'{tmp_path / 'again'}' in model repository '{tmp_path}' cannot be read: Too many"
    with pytest.raises(ConchError, match=words):
        find_source(given(str(tmp_path))).models()


def test_the_command_prints_the_refusal_in_ascii(tmp_path: Path) -> None:
    path = tmp_path / "schön.onnx"
    path.write_bytes(b"")
    result = conch(tmp_path, "run", str(path), COLUMNS="40", **ASCII_ONLY)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.isascii()
    assert "is empty" in result.stderr
