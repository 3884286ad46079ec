"""A hundred small models, good and bad in every way that a user's folder was seen to be: one entry each in `CASES`.

A case writes the folder of one model. The server says which of them load; `conch check` has to say the same.
"""

import pickle
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from skl2onnx import to_onnx
from sklearn.linear_model import LogisticRegression

from tests.server.backends.engines.gguf_model import write_gguf
from tests.server.backends.makers import onnx_doubling, openvino_writer, trees
from tests.server.backends.onnxruntime.onnx_models import FP32, write_model
from tests.server.backends.pytorch.torch_models import Doubled, Scaled, config_text, write_script
from tests.support.models import tensor

Write = Callable[[Path], object]
LABELS = "label_filename: 'l.txt'"
IN, OUT = f"input {tensor('IN', 'FP32', 4)}", f"output {tensor('OUT', 'FP32', 4)}"
IN3, OUT3 = f"input {tensor('IN', 'FP32', 3)}", f"output {tensor('OUT', 'FP32', 3)}"
LABELLED = f"output {tensor('OUT', 'FP32', 4, extra=LABELS)}"
EXECUTE = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()) for request in requests]

    def answer(self, rows):
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", rows)])
"""


# ---- how folders are written -----------------------------------------------------------------------------------------


def put(folder: Path, files: Mapping[str, str | bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def files(config: str | None = None, **content: str | bytes) -> Write:
    """A folder with these files in version 1, and a configuration unless it is None. `__` stands for a dot."""
    named = {f"1/{name.replace('__', '.')}": value for name, value in content.items()}

    def write(folder: Path) -> None:
        put(folder, {**named, **({} if config is None else {"config.pbtxt": config})})
        (folder / "1").mkdir(exist_ok=True)

    return write


def identity(text: str = "", tensors: str = f"{IN} {OUT}") -> Write:
    """A model that needs no file."""
    return files(f'backend: "identity" {text} {tensors}')


def python(code: str = EXECUTE, config: str = f'backend: "python" {IN} {OUT}') -> Write:
    return files(config, model__py=dedent(code))


def onnx_model(config: str | None = None, dims: Any = ("n", 3), then: Write | None = None) -> Write:
    """Doubles IN; `then` changes the folder."""

    def write(folder: Path) -> None:
        onnx_doubling(folder, list(dims))
        if config is not None:
            put(folder, {"config.pbtxt": config})
        if then is not None:
            then(folder)

    return write


def ir(config: str = "", then: Write | None = None) -> Write:
    def write(folder: Path) -> None:
        openvino_writer("n", 3)(folder, config)
        if then is not None:
            then(folder)

    return write


def script(config: str | None, module: type[torch.nn.Module] = Doubled, then: Write | None = None) -> Write:
    def write(folder: Path) -> None:
        write_script(folder, module(), config)
        if then is not None:
            then(folder)

    return write


def exported(config: str | None) -> Write:
    def write(folder: Path) -> None:
        (folder / "1").mkdir(parents=True)
        program = torch.export.export(Scaled(), (torch.zeros(3, 2),), dynamic_shapes=({0: torch.export.Dim("n")},))
        torch.export.save(program, folder / "1" / "model.pt2")
        if config is not None:
            put(folder, {"config.pbtxt": config})

    return write


def saved(what: Any, name: str = "model.pt", config: str | None = 'backend: "pytorch"') -> Write:
    """What `torch.save` writes: a pickle."""

    def write(folder: Path) -> None:
        files(config)(folder)
        torch.save(what, folder / "1" / name)

    return write


def forest(config: str, name: str = "xgboost.json", then: Write | None = None) -> Write:
    def write(folder: Path) -> None:
        files(config)(folder)
        trees(path=folder / "1" / name)
        if then is not None:
            then(folder)

    return write


def classifier(**options: Any) -> Write:
    """A classifier by skl2onnx. Its probabilities are a list of maps unless `zipmap` is switched off."""

    def write(folder: Path) -> None:
        features = np.random.default_rng(3).random((20, 3)).astype(np.float32)
        with warnings.catch_warnings(action="ignore"):
            model = LogisticRegression().fit(features, features.sum(1) > 1.5)
            converted = to_onnx(model, features[:1], target_opset=17, options={id(model): options})
        put(folder, {"1/model.onnx": converted.SerializeToString()})

    return write


def model_type(kind: str) -> str:
    return f'backend: "fil" parameters {{ key: "model_type" value {{ string_value: "{kind}" }} }}'


def cut(name: str, size: int = 40) -> Write:
    """Keep the beginning of a file."""

    def write(folder: Path) -> None:
        path = folder / name
        path.write_bytes(path.read_bytes()[:size])

    return write


def without(name: str) -> Write:
    return lambda folder: (folder / name).unlink()


def renamed(old: str, new: str) -> Write:
    return lambda folder: (folder / old).rename(folder / new)


def copied(version: str) -> Write:
    return lambda folder: shutil.copytree(folder / "1", folder / version)


def external(folder: Path) -> None:
    """Weights in a separate file."""
    path = folder / "1" / "model.onnx"
    path.parent.mkdir(parents=True)
    table = numpy_helper.from_array(np.ones((64, 64), np.float32), "W")
    node = helper.make_node("MatMul", ["IN", "W"], ["OUT"])
    kind = (FP32, ["n", 64])
    write_model(folder, [node], {"IN": kind}, {"OUT": kind}, initializers=[table])
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="weights.bin", size_threshold=0)


def gguf(folder: Path) -> None:
    files('backend: "openvino_genai"', model__json='{"num_kv_blocks": 16}')(folder)
    write_gguf(folder / "1" / "model.gguf")


def sequence_output(folder: Path) -> None:
    """An output that is a sequence of tensors."""
    node = helper.make_node("SplitToSequence", ["IN"], ["OUT"], axis=0)
    graph = helper.make_graph(
        [node],
        "graph",
        [helper.make_tensor_value_info("IN", FP32, [2, 3])],
        [helper.make_tensor_sequence_value_info("OUT", FP32, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    put(folder, {"1/model.onnx": model.SerializeToString()})


def strings(folder: Path) -> None:
    kind = (TensorProto.STRING, ["n", 3])
    write_model(folder, [helper.make_node("Identity", ["IN"], ["OUT"])], {"IN": kind}, {"OUT": kind})


def then(*writes: Write) -> Write:
    def write(folder: Path) -> None:
        for write in writes:
            write(folder)

    return write


def unreadable(name: str) -> Write:
    """Not even for root: a folder that leads to itself."""
    return lambda folder: (folder / name).symlink_to(folder / name)


# ---- the collection --------------------------------------------------------------------------------------------------

ONNX: dict[str, Write] = {
    "onnx-bare": onnx_model(),
    "node_modules": files(None, package__json="{}"),
    "onnx-batched": onnx_model("max_batch_size: 4"),
    "onnx-declared": onnx_model(f"max_batch_size: 4 {IN3} {OUT3}"),
    "onnx-wrong-dims": onnx_model(f"max_batch_size: 4 {IN} {OUT3}"),
    "onnx-wrong-name": onnx_model(f"max_batch_size: 4 input {tensor('X', 'FP32', 3)} {OUT3}"),
    "onnx-wrong-type": onnx_model(f"max_batch_size: 4 input {tensor('IN', 'INT64', 3)} {OUT3}"),
    "onnx-no-batch-axis": onnx_model(f"max_batch_size: 4 {IN3} {OUT3}", dims=(2, 3)),
    "onnx-unbatched": onnx_model("max_batch_size: 0", dims=(2, 3)),
    "onnx-output-only": onnx_model(f"max_batch_size: 4 {OUT3}"),
    "onnx-unknown-output": onnx_model(f"max_batch_size: 4 {IN3} output {tensor('NOPE', 'FP32', 3)}"),
    "onnx-cut": onnx_model(then=cut("1/model.onnx")),
    "onnx-empty": onnx_model(then=cut("1/model.onnx", 0)),
    "onnx-text": files(None, model__onnx="not a model"),
    "onnx-missing": onnx_model('backend: "onnxruntime"', then=without("1/model.onnx")),
    "onnx-misnamed": onnx_model('backend: "onnxruntime"', then=renamed("1/model.onnx", "1/net.onnx")),
    "onnx-other-name": onnx_model('default_model_filename: "net.onnx"', then=renamed("1/model.onnx", "1/net.onnx")),
    "onnx-platform": onnx_model('platform: "onnxruntime_onnx"'),
    "onnx-wrong-platform": onnx_model('platform: "tensorflow_graphdef"'),
    "onnx-external": external,
    "onnx-external-missing": then(external, without("1/weights.bin")),
    "onnx-zipmap": classifier(),
    "onnx-no-zipmap": classifier(zipmap=False),
    "onnx-zipmap-columns": classifier(zipmap="columns"),
    "onnx-sequence": sequence_output,
    "onnx-strings": strings,
    "onnx-two-versions": onnx_model("version_policy { all { } }", then=copied("2")),
    "onnx-one-bad-version": onnx_model("version_policy { all { } }", then=then(copied("2"), cut("2/model.onnx"))),
    "onnx-old-bad-version": onnx_model(then=then(copied("2"), cut("1/model.onnx"))),
    "onnx-specific-missing": onnx_model("version_policy { specific { versions: [ 7 ] } }"),
}

PYTHON: dict[str, Write] = {
    "python-good": python(),
    "python-no-config": files(None, model__py=EXECUTE),
    "python-declared": files(None, model__py="import conch\n@conch.model\ndef any_name(x: str) -> str: ...\n"),
    "python-declared-by-name": files(None, model__py="from conch import model\n@model\ndef a(x: str) -> str: ...\n"),
    "python-syntax": python("class TritonPythonModel:\n    def execute(self, requests)\n        return []\n"),
    "python-no-class": python("class Model:\n    def execute(self, requests):\n        return []\n"),
    "python-no-execute": python("class TritonPythonModel:\n    pass\n"),
    "python-empty": python(""),
    "python-missing": then(python(), without("1/model.py")),
    "python-not-utf8": files(f'backend: "python" {IN} {OUT}', model__py=b"# \xff\xfe\nclass TritonPythonModel: pass\n"),
    "python-print": python(EXECUTE + "\n    def initialize(self, args):\n        print('loading')\n"),
    "python-imported-class": then(
        python("from impl import TritonPythonModel\n"), lambda folder: put(folder, {"1/impl.py": EXECUTE})
    ),
    "python-class-by-name": python(EXECUTE.replace("TritonPythonModel", "Mine") + "\n\nTritonPythonModel = Mine\n"),
    "python-missing-import": python("import there_is_no_such_module\n" + EXECUTE),
    "python-guarded-import": python("try:\n    import nowhere\nexcept ImportError:\n    nowhere = None\n" + EXECUTE),
    "python-other-name": then(
        python(config=f'backend: "python" default_model_filename: "serve.py" {IN} {OUT}'),
        renamed("1/model.py", "1/serve.py"),
    ),
    "python-no-output": python(config=f'backend: "python" {IN}'),
    "python-auto-complete": python(
        EXECUTE
        + """
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [4]})
        config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [4]})
        return config
""",
        config='backend: "python"',
    ),
    "python-environment-missing": python(
        config=f'backend: "python" {IN} {OUT} parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: '
        '"$$TRITON_MODEL_DIRECTORY/env" } }'
    ),
    "python-decoupled": python(
        """
        import triton_python_backend_utils as pb_utils


        class TritonPythonModel:
            def execute(self, requests):
                for request in requests:
                    sender = request.get_response_sender()
                    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        """,
        config=f'backend: "python" model_transaction_policy {{ decoupled: true }} {IN} {OUT}',
    ),
}

TORCH_TENSORS = config_text([("IN", "FP32", [3])], [("OUT", "FP32", [3])])
TORCH: dict[str, Write] = {
    "torch-script": script(TORCH_TENSORS),
    "torch-script-bare": script(None),
    "torch-script-backend-only": script('backend: "pytorch"'),
    "torch-script-no-output": script(f'backend: "pytorch" {IN3}'),
    "torch-script-cut": script(TORCH_TENSORS, then=cut("1/model.pt", 200)),
    "torch-exported": exported('backend: "pytorch" max_batch_size: 4'),
    "torch-exported-bare": exported(None),
    "torch-exported-wrong": exported(
        f'backend: "pytorch" max_batch_size: 4 input {tensor("x", "FP32", 7)} output {tensor("OUTPUT__0", "FP32", 2)}'
    ),
    "torch-state": saved(Scaled().state_dict()),
    "torch-module": saved(Scaled()),
    "torch-pickle": files('backend: "pytorch"', model__pt=pickle.dumps({"a": 1})),
    "torch-text": files(TORCH_TENSORS, model__pt="weights"),
    "torch-missing": files(TORCH_TENSORS),
    "torch-checkpoint-name": saved(Scaled().state_dict(), "model.pth"),
}

OPENVINO: dict[str, Write] = {
    "ir-good": ir(),
    "ir-declared": ir(f"max_batch_size: 4 {IN3} {OUT3}"),
    "ir-wrong-dims": ir(f"max_batch_size: 4 {IN} {OUT3}"),
    "ir-bare": ir(then=without("config.pbtxt")),
    "ir-no-weights": ir(then=without("1/model.bin")),
    "ir-no-graph": ir(then=without("1/model.xml")),
    "ir-cut": ir(then=cut("1/model.xml", 300)),
    "ir-other-xml": files('backend: "openvino"', model__xml="<html><body/></html>", model__bin=b"\0" * 8),
    "ir-genai-alone": files('backend: "openvino_genai"', openvino_model__xml="<net/>"),
}

TREES: dict[str, Write] = {
    "trees-json": forest(model_type("xgboost_json")),
    "trees-ubj": forest(model_type("xgboost_ubj"), "xgboost.ubj"),
    "trees-wrong-kind": forest(model_type("lightgbm"), then=renamed("1/xgboost.json", "1/model.txt")),
    "trees-unknown-kind": forest(model_type("catboost")),
    "trees-cut": forest(model_type("xgboost_json"), then=cut("1/xgboost.json", 300)),
    "trees-missing": forest(model_type("xgboost_json"), then=without("1/xgboost.json")),
    "trees-pickle": files('backend: "fil"', model__pkl=pickle.dumps({"a": 1})),
    "trees-joblib": files(model_type("treelite_checkpoint"), model__joblib=b"\x80\x04."),
}

CONFIG: dict[str, Write] = {
    "config-good": identity(),
    "config-empty": identity("", ""),
    "config-unknown-field": identity("max_batchsize: 4"),
    "config-list-of-messages": identity("dynamic_batching [ { } ] max_batch_size: 4"),
    "config-other-name": identity('name: "another"'),
    "config-negative": identity("max_batch_size: -2"),
    "config-priorities": identity(
        "max_batch_size: 4 dynamic_batching { priority_levels: 3 default_priority_level: 9 }"
    ),
    "config-huge-priorities": identity(
        "max_batch_size: 4 dynamic_batching { priority_levels: 18446744073709551615 default_priority_level: 1 }"
    ),
    "config-preferred-too-large": identity("max_batch_size: 4 dynamic_batching { preferred_batch_size: [ 8 ] }"),
    "config-two-schedulers": identity("dynamic_batching { } sequence_batching { direct { } }"),
    "config-label-missing": identity("", f"{IN} {LABELLED}"),
    "config-label": then(
        identity("", f"{IN} {LABELLED}"),
        lambda folder: put(folder, {"l.txt": "a\nb\nc\nd\n"}),
    ),
    "config-zero-dim": identity("", f"input {tensor('IN', 'FP32', 0)} {OUT}"),
    "config-reshape": identity(
        "max_batch_size: 4", f"input {tensor('IN', 'FP32', 4, extra='reshape { shape: [ 2, 2 ] }')} {OUT}"
    ),
    "config-bad-reshape": identity(
        "max_batch_size: 4", f"input {tensor('IN', 'FP32', 4, extra='reshape { shape: [ 3 ] }')} {OUT}"
    ),
    "config-cpu-with-gpus": identity("instance_group { kind: KIND_CPU gpus: [ 0 ] }"),
    "config-cache-decoupled": identity("response_cache { enable: true } model_transaction_policy { decoupled: true }"),
    "config-warmup": identity(
        'model_warmup { name: "w" batch_size: 1 inputs { key: "IN" value { data_type: TYPE_FP32 dims: 4 '
        "zero_data: true } } }"
    ),
    "config-warmup-file": identity(
        'model_warmup { name: "w" batch_size: 1 inputs { key: "IN" value { data_type: TYPE_FP32 dims: 4 '
        'input_data_file: "none" } } }'
    ),
    "config-outside": identity('default_model_filename: "../../m"'),
    "config-crlf": files(f'backend: "identity"\r\n{IN}\r\n{OUT}\r\n'),
    "config-bom": files(f'\ufeffbackend: "identity" {IN} {OUT}'),
    "config-latin1": lambda folder: put(folder, {"config.pbtxt": b'backend: "identity" # \xe9\n', "1/x": ""}),
    "config-json": files('{"backend": "identity"}'),
    "config-unknown-backend": files(f'backend: "onnx" {IN} {OUT}'),
    "config-no-backend": files(f"{IN} {OUT}"),
    "config-agents": identity('model_repository_agents { agents { name: "checksum" } }'),
    "config-agent-unknown": identity('model_repository_agents { agents { name: "checksums" } }'),
    "config-agent-mismatch": identity(
        'model_repository_agents { agents { name: "checksum" parameters { key: "MD5:config.pbtxt" value: "0" } } }'
    ),
}

FOLDERS: dict[str, Write] = {
    "folder-no-version": lambda folder: put(folder, {"config.pbtxt": f'backend: "identity" {IN} {OUT}'}),
    "folder-version-v1": lambda folder: put(folder, {"config.pbtxt": f'backend: "identity" {IN} {OUT}', "v1/x": ""}),
    "folder-version-01": lambda folder: put(folder, {"config.pbtxt": f'backend: "identity" {IN} {OUT}', "01/x": ""}),
    "folder-version-0": lambda folder: put(folder, {"config.pbtxt": f'backend: "identity" {IN} {OUT}', "0/x": ""}),
    "folder-nested": lambda folder: put(folder, {f"{folder.name}/1/model.py": EXECUTE}),
    "folder-empty": lambda folder: folder.mkdir(),
    "folder-readme": lambda folder: put(folder, {"README.md": "# Notes"}),
    "folder-images": lambda folder: put(folder, {"a/b/c.jpg": b"\xff\xd8"}),
    "folder-tensorflow": lambda folder: put(folder, {"1/model.savedmodel/saved_model.pb": b"\x08\x01"}),
    "folder-safetensors": lambda folder: put(folder, {"1/model.safetensors": b"\0" * 16, "1/config.json": "{}"}),
    "folder-loop": then(files(f'backend: "identity" {IN} {OUT}'), unreadable("2")),
    "folder-config-is-folder": lambda folder: put(folder, {"config.pbtxt/x": "", "1/x": ""}),
    "folder-with-notebook": then(python(), lambda folder: put(folder, {".ipynb_checkpoints/a": "", "notes/b": ""})),
}

ENGINES: dict[str, Write] = {
    "engine-gguf": gguf,
    "engine-gguf-cut": then(gguf, cut("1/model.gguf", 2000)),
    "engine-gguf-text": then(gguf, lambda folder: put(folder, {"1/model.gguf": "no model"})),
    "engine-scripted": files('backend: "scripted"', model__json="{}"),
    "engine-scripted-wrong": files('backend: "scripted"', model__json='{"answer": 1}'),
}

CASES: dict[str, Write] = {**ONNX, **PYTHON, **TORCH, **OPENVINO, **TREES, **CONFIG, **FOLDERS, **ENGINES}


def write_cases(root: Path, cases: Mapping[str, Write] = CASES) -> None:
    """Write the folder of each case."""
    root.mkdir(parents=True, exist_ok=True)
    for name, write in cases.items():
        write(root / name)
