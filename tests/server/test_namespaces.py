"""`--model-namespacing`: what clients, BLS models, the index and the metrics see of models of one name."""

from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from tests.support.models import tensor, write_ensemble, write_python
from tests.support.server_process import ConchProcess

CONFIG = f"input {tensor('INPUT0', 'FP32', 1)} output {tensor('OUTPUT0', 'FP32', 1)}"
TIMES = """
value = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", value * {factor})])
"""
CALLS = """
if not pb_utils.is_model_ready("times"):
    return pb_utils.InferenceResponse(error=pb_utils.TritonError("times is not ready"))
answer = pb_utils.InferenceRequest(
    model_name="times", requested_output_names=["OUTPUT0"], inputs=request.inputs()
).exec()
return pb_utils.InferenceResponse(answer.output_tensors(), answer.error() if answer.has_error() else None)
"""


@pytest.fixture
def roots(tmp_path: Path) -> list[Path]:
    roots = [tmp_path / "one", tmp_path / "two"]
    for number, root in enumerate(roots, 1):
        write_python(root, "times", CONFIG, TIMES.format(factor=10 * number))
        write_python(root, f"calls_{root.name}", CONFIG, CALLS)
        step = ("times", {"INPUT0": "IN"}, {"OUTPUT0": "OUT"})
        ends = f"input {tensor('IN', 'FP32', 1)}", f"output {tensor('OUT', 'FP32', 1)}"
        write_ensemble(root, f"ensemble_{root.name}", *ends, step)
    return roots


def test_models_of_one_name_are_distinguished(roots: list[Path], tmp_path: Path) -> None:
    flags = [f"--model-repository={roots[1]}", "--model-namespacing=true"]
    with ConchProcess(roots[0], *flags, log=tmp_path / "log") as server:
        http, grpc = http_client.InferenceServerClient(server.http), grpc_client.InferenceServerClient(server.grpc)

        def ask(model: str, name: str = "INPUT0", output: str = "OUTPUT0") -> float:
            taken = http_client.InferInput(name, [1], "FP32")
            taken.set_data_from_numpy(np.ones(1, np.float32))
            return float(http.infer(model, [taken]).as_numpy(output)[0])

        assert [ask(f"ensemble_{root.name}", "IN", "OUT") for root in roots] == [10, 20]
        assert [ask(f"calls_{root.name}") for root in roots] == [10, 20]
        with pytest.raises(InferenceServerException, match="There are 2 identifiers of model 'times'") as raised:
            ask("times")
        assert raised.value.status() == "400"
        with pytest.raises(InferenceServerException, match="There are 2 identifiers") as raised:
            grpc.get_model_metadata("times")
        assert raised.value.status() == "StatusCode.INVALID_ARGUMENT"
        assert not http.is_model_ready("times")
        assert not grpc.is_model_ready("times")
        names = [row["name"] for row in http.get_model_repository_index()]
        assert names == ["calls_one", "ensemble_one", "times", "calls_two", "ensemble_two", "times"]
        assert len(grpc.get_inference_statistics().model_stats) == 6
        for root in roots:
            series = f'nv_inference_request_success{{model="times",namespace="{root}",version="1"}} 2'
            assert series in server.metrics()
        http.close()
        grpc.close()


def test_without_namespaces_a_name_in_two_repositories_is_refused(roots: list[Path], tmp_path: Path) -> None:
    flags = [f"--model-repository={roots[1]}", "--exit-on-error=false"]
    with ConchProcess(roots[0], *flags, log=tmp_path / "log", wait="live") as server:
        server.until_logged("Started HTTPService")
        server.until("/v2/models/times/ready", 400)
        server.until_logged(f"model 'times' is ambiguous: it is in {roots[0]} and in {roots[1]}")
        assert "namespace=" not in server.metrics()
