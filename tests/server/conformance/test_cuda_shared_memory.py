"""CUDA shared memory with the official clients, where there is a GPU."""

import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from tests.support.models import ECHO, tensor, write_identity, write_python
from tests.support.server_process import ConchProcess


def why_not() -> str:
    """Why no memory of a GPU can be shared here, "" if it can."""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout
    except OSError:
        listed = ""
    if "GPU 0" not in listed:
        return "nvidia-smi, which asks NVML, finds no GPU"
    return "" if find_spec("cuda") is not None else "the package 'cuda-bindings' is not installed"


NOT_HERE = why_not()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(NOT_HERE), reason=NOT_HERE or "there is a GPU")]

VALUES = np.random.default_rng(5).random(100_000, dtype=np.float32)


@pytest.fixture(scope="module")
def conch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    root = tmp_path_factory.mktemp("cuda")
    write_identity(root / "models", "floats")
    floats = f"input {tensor('INPUT0', 'FP32', -1)} output {tensor('OUTPUT0', 'FP32', -1)}"
    write_python(root / "models", "python_floats", floats, ECHO)
    with ConchProcess(root / "models", "--allow-client-shm=true", log=root / "conch.log") as server:
        yield server


@pytest.mark.parametrize("model", ["floats", "python_floats"])
@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_a_tensor_goes_in_and_comes_out(conch: ConchProcess, kind: str, model: str) -> None:
    from tritonclient.utils import cuda_shared_memory

    library: Any = http_client if kind == "http" else grpc_client
    size = VALUES.nbytes
    given, taken = (cuda_shared_memory.create_shared_memory_region(name, size, 0) for name in ("in", "out"))
    with library.InferenceServerClient(conch.http if kind == "http" else conch.grpc) as client:
        try:
            for name, region in (("in", given), ("out", taken)):
                client.register_cuda_shared_memory(name, cuda_shared_memory.get_raw_handle(region), 0, size)
            with pytest.raises(InferenceServerException, match="its memory has"):
                client.register_cuda_shared_memory("more", cuda_shared_memory.get_raw_handle(given), 0, 2**40)
            status = client.get_cuda_shared_memory_status()
            rows = {row["name"]: row for row in status} if kind == "http" else status.regions
            assert sorted(rows) == ["in", "out"]
            cuda_shared_memory.set_shared_memory_region(given, [VALUES])
            shared, wanted = (
                library.InferInput("INPUT0", [len(VALUES)], "FP32"),
                library.InferRequestedOutput("OUTPUT0"),
            )
            shared.set_shared_memory("in", size)
            wanted.set_shared_memory("out", size)
            client.infer(model, [shared], outputs=[wanted])
            np.testing.assert_array_equal(
                cuda_shared_memory.get_contents_as_numpy(taken, np.float32, VALUES.shape), VALUES
            )
        finally:
            client.unregister_cuda_shared_memory()
            for region in (given, taken):
                cuda_shared_memory.destroy_shared_memory_region(region)
        assert not list(getattr(client.get_cuda_shared_memory_status(), "regions", ()))
