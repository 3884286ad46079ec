"""Small models of every backend, for the contract that all of them keep: one entry for each in `MAKERS`.

All take rows of three FP32 numbers and can batch; what they answer differs, and `answer` says it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.server.backends.onnxruntime.onnx_models import FP32, write_model
from tests.server.backends.pytorch.torch_models import Doubled, write_script
from tests.support.models import tensor

Rows = npt.NDArray[np.float32]
Writer = Callable[[Path, str], object]


def doubled(rows: Rows) -> Rows:
    return rows * 2


@dataclass(frozen=True)
class Maker:
    """What the contract needs to know of a backend. Writers get the model's folder and text for its config.pbtxt.

    `write` is the plain model; `variable` one whose second dimension is free, `scalar` one without dimensions and
    without a batch, and `picky` one that fails for a request with a 99 in it, None where there is no such model.
    `filename` is the model's file in the version folder, "" where there is none. `completes` says that the model tells
    its inputs and outputs, `checks` that a configuration is held against it.
    """

    backend: str
    write: Writer
    answer: Callable[[Rows], Rows] = doubled
    input: str = "IN"
    output: str = "OUT"
    width: int = 3
    filename: str = ""
    completes: bool = True
    checks: bool = True
    variable: Writer | None = None
    scalar: Writer | None = None
    picky: Writer | None = None

    def declaration(self, datatype: str = "FP32", given: int = 3) -> str:
        """The inputs and outputs as config.pbtxt has them."""
        return (
            f"max_batch_size: 4 input {tensor(self.input, datatype, given)} "
            f"output {tensor(self.output, datatype, self.width)} "
        )


def config(folder: Path, backend: str, text: str) -> Path:
    (folder / "1").mkdir(parents=True, exist_ok=True)
    (folder / "config.pbtxt").write_text(f'backend: "{backend}" {text}')
    return folder / "1"


def onnx_doubling(folder: Path, dims: list[int | str]) -> None:
    node = helper.make_node("Add", ["IN", "IN"], ["OUT"])
    write_model(folder, [node], {"IN": (FP32, dims)}, {"OUT": (FP32, dims)})


def onnx_picky(folder: Path, text: str) -> None:
    """Doubles the rows; each of their numbers is an index into a table of a hundred rows less one."""
    table = numpy_helper.from_array(np.arange(0, 198, 2, dtype=np.float32), "TABLE")
    nodes = [
        helper.make_node("Cast", ["IN"], ["INDEX"], to=TensorProto.INT64),
        helper.make_node("Gather", ["TABLE", "INDEX"], ["OUT"]),
    ]
    kind = (FP32, ["n", 3])
    write_model(folder, nodes, {"IN": kind}, {"OUT": kind}, initializers=[table])
    config(folder, "onnxruntime", text)


def onnx_writer(*dims: int | str) -> Writer:
    def write(folder: Path, text: str) -> None:
        onnx_doubling(folder, list(dims))
        config(folder, "onnxruntime", text)

    return write


def openvino_writer(*dims: int | str) -> Writer:
    """The same as OpenVINO's own files."""

    def write(folder: Path, text: str) -> None:
        openvino = pytest.importorskip("openvino")
        onnx_doubling(folder, list(dims))
        version = config(folder, "openvino", text)
        openvino.save_model(openvino.Core().read_model(version / "model.onnx"), version / "model.xml")
        (version / "model.onnx").unlink()

    return write


PYTHON = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [DIM]})
        config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [DIM]})
        config.set_max_batch_size(4)
        return config

    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()) for request in requests]

    def answer(self, rows):
        if (rows == 99).any():
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("99 is not to be doubled"))
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", rows * np.float32(2))])
"""


def python_writer(dim: int) -> Writer:
    def write(folder: Path, text: str) -> None:
        version = config(folder, "python", text)
        (version / "model.py").write_text(dedent(PYTHON).replace("DIM", str(dim)))

    return write


def torch_writer(dims: str, batch: str = "max_batch_size: 4 ") -> Writer:
    """TorchScript, which fails for 99."""

    def write(folder: Path, text: str) -> None:
        tensors = "".join(
            f'{kind} {{ name: "{name}" data_type: TYPE_FP32 {dims} }} '
            for kind, name in (("input", "IN"), ("output", "OUT"))
        )
        declared = ("" if "max_batch_size" in text else batch) + ("" if "input {" in text else tensors)
        write_script(folder, Doubled(), f'backend: "pytorch" {declared} {text}')

    return write


def identity_writer(dim: int) -> Writer:
    def write(folder: Path, text: str) -> None:
        names = f"input {tensor('IN', 'FP32', dim)} output {tensor('OUT', 'FP32', dim)}"
        size = "" if "max_batch_size" in text else "max_batch_size: 4"
        config(folder, "identity", f"{size} {text} {'' if 'input {' in text else names}")

    return write


def trees(rows: Rows | None = None, path: Path | None = None) -> Rows:
    """Train the same few trees each time; save them, or answer the rows by XGBoost itself."""
    xgboost = pytest.importorskip("xgboost")
    features = np.random.default_rng(7).normal(size=(200, 3)).astype(np.float32)
    data = xgboost.DMatrix(features, features @ np.array([1, 2, 3], np.float32))
    booster = xgboost.train({"max_depth": 3, "seed": 7}, data, 5)
    if path is not None:
        booster.save_model(path)
    answer: Rows = booster.predict(xgboost.DMatrix(features if rows is None else rows)).reshape(-1, 1)
    return answer


def write_trees(folder: Path, text: str) -> None:
    version = config(
        folder, "fil", f'{text} parameters {{ key: "model_type" value {{ string_value: "xgboost_json" }} }}'
    )
    trees(path=version / "xgboost.json")


MAKERS = (
    Maker(
        "onnxruntime",
        onnx_writer("n", 3),
        filename="model.onnx",
        variable=onnx_writer("n", "k"),
        scalar=onnx_writer(),
        picky=onnx_picky,
    ),
    Maker(
        "openvino",
        openvino_writer("n", 3),
        filename="model.xml",
        variable=openvino_writer("n", "k"),
        scalar=openvino_writer(),
    ),
    Maker(
        "python",
        python_writer(3),
        filename="model.py",
        checks=False,
        variable=python_writer(-1),
        picky=python_writer(3),
    ),
    Maker(
        "pytorch",
        torch_writer("dims: [ 3 ]"),
        filename="model.pt",
        completes=False,
        checks=False,
        variable=torch_writer("dims: [ -1 ]"),
        scalar=torch_writer("dims: [ 1 ]", batch=""),
        picky=torch_writer("dims: [ 3 ]"),
    ),
    Maker(
        "identity",
        identity_writer(3),
        answer=lambda rows: rows,
        completes=False,
        checks=False,
        variable=identity_writer(-1),
    ),
    Maker(
        "fil",
        write_trees,
        answer=trees,
        input="input__0",
        output="output__0",
        width=1,
        filename="xgboost.json",
    ),
)


def having(feature: str) -> list[Any]:
    """Those makers that have a feature, as parameters of a test."""
    return [pytest.param(maker, id=maker.backend) for maker in MAKERS if getattr(maker, feature)]


ALL: list[Any] = having("backend")
