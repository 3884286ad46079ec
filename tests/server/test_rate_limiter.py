"""`--rate-limit=execution_count` on a running server: models that share a resource never execute at once."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.server.clients import Client
from tests.support.models import tensor, write_python
from tests.support.server_process import ConchProcess

# Each execution writes when it begins and when it ends.
WRITES = """
path = json.loads(self.config)["parameters"]["path"]["string_value"]
with open(path, "ab", buffering=0) as file:
    file.write(b"+")
    time.sleep(0.002)
    file.write(b"-")
return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())])
"""
KEEP_CONFIG = """
def initialize(self, args):
    self.config = args["model_config"]
"""


def write(root: Path, name: str, resources: str, path: Path, count: int = 1) -> None:
    group = f"instance_group [{{ kind: KIND_CPU count: {count} rate_limiter {{ {resources} }} }}]"
    parameter = f'parameters {{ key: "path" value {{ string_value: "{path}" }} }}'
    config = f"{group} {parameter} input {tensor('INPUT0', 'FP32', 1)} output {tensor('OUTPUT0', 'FP32', 1)}"
    write_python(root, name, config, WRITES, more=KEEP_CONFIG)


def test_one_unit_lets_one_instance_of_all_models_execute(tmp_path: Path) -> None:
    models, trace = tmp_path / "models", tmp_path / "trace"
    write(models, "one", 'resources [{ name: "R" count: 1 }]', trace, count=2)
    write(models, "two", 'resources [{ name: "R" count: 1 }] priority: 2', trace)
    with ConchProcess(models, "--rate-limit=execution_count", log=tmp_path / "log") as server:

        def asks(number: int) -> float:
            with Client(server, ("http", "grpc")[number % 2]) as client:
                for _ in range(5):
                    result = client.ask(("one", "two")[number // 2 % 2], {"INPUT0": np.full(1, number, np.float32)})
                return float(result.as_numpy("OUTPUT0")[0])

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(asks, range(8))) == [float(number) for number in range(8)]
    assert trace.read_bytes() == b"+-" * 40


CALLS = """
tensors = [pb_utils.Tensor("INPUT0", request.inputs()[0].as_numpy())]
asked = pb_utils.InferenceRequest(model_name="{}", requested_output_names=["OUTPUT0"], inputs=tensors)
answer = asked.exec()
if answer.has_error():
    return pb_utils.InferenceResponse(error=answer.error())
return pb_utils.InferenceResponse(answer.output_tensors())
"""


def write_caller(root: Path, name: str, resources: str, callee: str) -> None:
    group = f"instance_group [{{ kind: KIND_CPU rate_limiter {{ {resources} }} }}]"
    tensors = f"input {tensor('INPUT0', 'FP32', 1)} output {tensor('OUTPUT0', 'FP32', 1)}"
    write_python(root, name, f"{group} {tensors}", CALLS.format(callee))


def test_a_call_to_a_model_that_needs_what_the_caller_keeps_is_refused_by_name(tmp_path: Path) -> None:
    models = tmp_path / "models"
    single, double = (f'resources [{{ name: "R" count: {count} }}]' for count in (1, 2))
    write(models, "callee", double, tmp_path / "trace")
    write_caller(models, "between", "", "callee")
    write_caller(models, "stuck", single, "between")
    write_caller(models, "free", "", "between")
    data = {"INPUT0": np.ones(1, np.float32)}
    with ConchProcess(models, "--rate-limit=execution_count", log=tmp_path / "log") as server:
        for protocol in ("http", "grpc"):
            with Client(server, protocol) as client:
                with pytest.raises(InferenceServerException, match="rate limiter that model 'stuck' keeps until"):
                    client.ask("stuck", data)
                assert client.ask("free", data).as_numpy("OUTPUT0").tolist() == [1]


def test_what_can_never_be_had_fails_the_load_and_is_named(tmp_path: Path) -> None:
    models, trace = tmp_path / "models", tmp_path / "trace"
    write(models, "greedy", 'resources [{ name: "R1" count: 4 }]', trace)
    write(models, "modest", 'resources [{ name: "R1" count: 2 }]', trace)
    write(models, "torn", 'resources [{ name: "R2" count: 1 }, { name: "R2" count: 1 global: true }]', trace)
    flags = [
        "--rate-limit=execution_count",
        "--rate-limit-resource=R1:2",
        "--rate-limit-resource=R2:1",
        "--exit-on-error=false",
    ]
    with ConchProcess(models, *flags, log=tmp_path / "log", wait="live") as server, Client(server, "http") as client:
        server.until_logged("successfully loaded 'modest'.*\n.*models")
        reasons = {row["name"]: row.get("reason", "") for row in client.client.get_model_repository_index()}
        assert 'Resource count for "R1" is limited to 2' in reasons["greedy"]
        assert "the minimum required count is 4" in reasons["greedy"]
        assert 'Resource "R2" is present as both global and device-specific resource' in reasons["torn"]
        client.ask("modest", {"INPUT0": np.zeros(1, np.float32)})


def test_without_the_flag_nothing_is_limited_and_a_warning_is_logged(tmp_path: Path) -> None:
    write(tmp_path / "models", "one", 'resources [{ name: "R" count: 1 }]', tmp_path / "trace")
    with ConchProcess(tmp_path / "models", "--rate-limit-resource=R:0", log=tmp_path / "log") as server:
        with Client(server, "grpc") as client:
            client.ask("one", {"INPUT0": np.zeros(1, np.float32)})
        assert "rate_limiter of model 'one' has no effect without --rate-limit=execution_count" in server.text
