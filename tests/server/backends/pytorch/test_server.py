"""All kinds of PyTorch models behind a server, which leaves none of their processes behind."""

from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
import tritonclient.http as httpclient

from tests.server.backends.pytorch.torch_models import (
    Doubled,
    Sums,
    config_text,
    fp32,
    write_code,
    write_exported,
    write_script,
)
from tests.support.server_process import ConchProcess

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")

CODE = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return 3 * x
"""


def test_a_server_of_pytorch_models(tmp_path: Path) -> None:
    models = tmp_path / "models"
    vector = [("x", "FP32", [2])], [("y", "FP32", [2])]
    write_script(models / "script", Doubled(), config_text([("IN", "FP32", [2])], vector[1], batch=4))
    # Neither backend nor platform is said.
    write_exported(models / "program", Sums(), torch.rand(2, 2, 2), None)
    write_code(models / "code", CODE, config_text(*vector, more='runtime: "model.py" dynamic_batching { }', batch=4))
    with ConchProcess(models, log=tmp_path / "log") as server:
        client = httpclient.InferenceServerClient(server.http)
        rows = fp32([1, 2], [3, 4])
        got = [ask(client, name, **inputs) for name, inputs in asked(rows).items()]
        assert [answer.tolist() for answer in got] == [(2 * rows).tolist(), rows.tolist(), (3 * rows).tolist()]
        assert client.get_model_config("program")["platform"] == "torch_aoti"
        assert "has no effect" not in server.text
        client.close()
        children = psutil.Process(server.process.pid).children(recursive=True)
        assert len(children) >= 2
    assert not [child for child in children if child.is_running()]


def asked(rows: np.ndarray) -> dict[str, dict[str, np.ndarray]]:
    return {"script": {"IN": rows}, "program": {"a": rows, "b": 0 * rows}, "code": {"x": rows}}


def ask(client: httpclient.InferenceServerClient, name: str, **arrays: np.ndarray) -> np.ndarray:
    inputs = []
    for key, array in arrays.items():
        tensor = httpclient.InferInput(key, list(array.shape), "FP32")
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    result = client.infer(name, inputs)
    first = result.get_response()["outputs"][0]["name"]
    answer: np.ndarray = result.as_numpy(first)
    return answer
