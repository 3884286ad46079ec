"""Models to be asked with tensors in shared memory, and what the official clients do there."""

from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException, shared_memory

from tests.support.models import ECHO, tensor, write_ensemble, write_identity, write_python
from tests.support.server_process import ConchProcess

Array = np.ndarray[Any, Any]

FLOATS = np.arange(16, dtype=np.float32)
LARGE = np.random.default_rng(5).random(1_228_800, dtype=np.float32)
IN, OUT = FLOATS.nbytes, FLOATS.nbytes

ADDSUB = """
a, b = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("INPUT0", "INPUT1"))
return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", a + b), pb_utils.Tensor("OUTPUT1", a - b)])
"""
REPEAT = """
sender = request.get_response_sender()
values = request.inputs()[0].as_numpy()
for number in range(3):
    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", values + number)]))
sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
# Calls `python_floats` with what it was given.
FORWARD = """
inputs = request.inputs()
inner = pb_utils.InferenceRequest(model_name="python_floats", inputs=inputs, requested_output_names=["OUTPUT0"])
answer = inner.exec()
return pb_utils.InferenceResponse(answer.output_tensors())
"""
# Signals by a file that it has begun, and answers when another file exists.
WAIT = """
folder = json.loads(request.parameters())["folder"]
open(folder + "/begun", "w").close()
while not os.path.exists(folder + "/go"):
    time.sleep(0.01)
return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())])
"""


def write_region_models(models: Path) -> None:
    """Write the models that tests of regions ask."""
    write_identity(models, "floats")
    write_identity(models, "bytes", "STRING")
    write_identity(models, "cached", extra="response_cache { enable: true }")
    floats = f"input {tensor('INPUT0', 'FP32', -1)} output {tensor('OUTPUT0', 'FP32', -1)}"
    write_python(models, "python_floats", floats, ECHO)
    write_python(models, "wait", floats, WAIT)
    write_python(models, "forward", floats, FORWARD)
    write_python(models, "python_cached", f"response_cache {{ enable: true }} {floats}", ECHO)
    write_python(
        models,
        "python_bytes",
        f"input {tensor('INPUT0', 'STRING', -1)} output {tensor('OUTPUT0', 'STRING', -1)}",
        ECHO,
    )
    pair = f"{tensor('INPUT0', 'INT32', 4)}, {tensor('INPUT1', 'INT32', 4)}"
    write_python(models, "addsub", f"input [{pair}] output [{pair.replace('INPUT', 'OUTPUT')}]", ADDSUB)
    write_python(models, "repeat", f"model_transaction_policy {{ decoupled: true }} {floats}", REPEAT)
    write_ensemble(
        models,
        "chain",
        f"input {tensor('IN', 'FP32', -1)}",
        f"output {tensor('OUT', 'FP32', -1)}",
        ("floats", {"INPUT0": "IN"}, {"OUTPUT0": "middle"}),
        ("python_floats", {"INPUT0": "middle"}, {"OUTPUT0": "OUT"}),
    )
    write_ensemble(
        models,
        "python_chain",
        f"input {tensor('IN', 'FP32', -1)}",
        f"output [{tensor('OUT', 'FP32', -1)}, {tensor('COPY', 'FP32', -1)}]",
        ("python_floats", {"INPUT0": "IN"}, {"OUTPUT0": "middle"}),
        ("floats", {"INPUT0": "IN"}, {"OUTPUT0": "COPY"}),
        ("forward", {"INPUT0": "middle"}, {"OUTPUT0": "OUT"}),
    )


class Regions:
    """One client, and the regions that it shares with the server; all of them are gone at the end."""

    def __init__(self, kind: str, conch: ConchProcess) -> None:
        self.kind = kind
        self.library: Any = http_client if kind == "http" else grpc_client
        self.address = conch.http if kind == "http" else conch.grpc
        self.client = self.library.InferenceServerClient(self.address)
        self.handles: dict[str, Any] = {}
        self.prefix = uuid4().hex[:12]

    def close(self) -> None:
        self.client.unregister_system_shared_memory()
        self.client.close()
        for handle in self.handles.values():
            shared_memory.destroy_shared_memory_region(handle)

    def key(self, name: str) -> str:
        return f"/conch-test-{self.prefix}-{name}"

    def share(self, name: str, size: int, *arrays: Array) -> None:
        """Make an object and register all of it."""
        self.handles[name] = shared_memory.create_shared_memory_region(name, self.key(name), size)
        if arrays:
            shared_memory.set_shared_memory_region(self.handles[name], list(arrays))
        self.client.register_system_shared_memory(name, self.key(name), size)

    def read(self, name: str, dtype: Any, shape: Any, offset: int = 0) -> Array:
        return shared_memory.get_contents_as_numpy(self.handles[name], dtype, shape, offset=offset)

    def input(
        self, region: str, size: int, shape: Any, datatype: str = "FP32", name: str = "INPUT0", offset: int = 0
    ) -> Any:
        shared = self.library.InferInput(name, list(shape), datatype)
        shared.set_shared_memory(region, size, offset)
        return shared

    def output(self, region: str, size: int, name: str = "OUTPUT0", offset: int = 0) -> Any:
        requested = self.library.InferRequestedOutput(name)
        requested.set_shared_memory(region, size, offset)
        return requested

    def refusal(self, *arguments: Any, **options: Any) -> str:
        with pytest.raises(InferenceServerException) as caught:
            self.client.infer(*arguments, **options)
        return f"{caught.value.status()}: {caught.value.message()}"
