"""GPU discovery of a server, by its clients and log, with a fake driver below the real NVML bindings."""

from pathlib import Path

import pytest
import tritonclient.http as httpclient

from tests.machine.accelerators.nvml import A100, H100, K80, SLICES, machine_with
from tests.support.models import write_python
from tests.support.server_process import ConchProcess

TENSORS = """
    input { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
    output { name: "OUTPUT0" data_type: TYPE_STRING dims: [ -1 ] }
"""
# What a model's process is given, as JSON. It takes a while, so that of two instances one is busy with a call before.
SHOW = """
time.sleep(0.05)
seen = {key: self.arguments[key] for key in ("model_instance_kind", "model_instance_device_id", "model_instance_name")}
seen["visible"] = os.environ.get("CUDA_VISIBLE_DEVICES")
return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([json.dumps(seen)], object))])
"""
KEEP = """
    def initialize(self, args):
        self.arguments = args
"""


def write_model(root: Path, name: str, groups: str = "") -> None:
    write_python(root, name, TENSORS + groups, SHOW, more=KEEP)


@pytest.fixture
def machine(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "Machine":
    return Machine(library, tmp_path, monkeypatch)


class Machine:
    """Servers that start on a machine of these GPUs."""

    def __init__(self, library: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._library, self._folder, self._monkeypatch = library, folder, monkeypatch
        self.models = folder / "models"
        self.models.mkdir()
        for variable in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
            monkeypatch.delenv(variable, raising=False)

    def serve(self, *gpus: str, flags: tuple[str, ...] = (), **variables: str) -> ConchProcess:
        for name, value in {**machine_with(self._library, self._folder, *gpus), **variables}.items():
            self._monkeypatch.setenv(name, value)
        return ConchProcess(self.models, "--grpc-port=0", *flags, log=self._folder / "log")


def groups_of(server: ConchProcess, model: str) -> list[tuple[str, int, list[int]]]:
    with httpclient.InferenceServerClient(server.http) as client:
        config = client.get_model_config(model)
    return [(group["kind"], group["count"], group["gpus"]) for group in config["instance_group"]]


def seen_by(server: ConchProcess, model: str, times: int) -> list[dict[str, str]]:
    """What the instances show; each of several is asked, since a busy one does not answer."""
    import json
    from concurrent.futures import ThreadPoolExecutor

    import numpy as np

    def ask(_: int) -> dict[str, str]:
        with httpclient.InferenceServerClient(server.http) as client:
            given = httpclient.InferInput("INPUT0", [1], "FP32")
            given.set_data_from_numpy(np.zeros(1, np.float32))
            shown: dict[str, str] = json.loads(client.infer(model, [given]).as_numpy("OUTPUT0")[0])
            return shown

    with ThreadPoolExecutor(8) as threads:
        return list(threads.map(ask, range(times)))


def test_kinds_and_devices_follow_from_the_gpus_of_the_machine(machine: Machine) -> None:
    write_model(machine.models, "plain")
    write_model(machine.models, "auto", "instance_group { kind: KIND_AUTO count: 2 gpus: [ 1 ] }")
    write_model(machine.models, "missing", "instance_group { kind: KIND_AUTO gpus: [ 1, 2 ] }")
    write_model(machine.models, "gpu", "instance_group { kind: KIND_GPU }")
    write_model(machine.models, "second", "instance_group { kind: KIND_GPU gpus: [ 1 ] }")
    write_model(machine.models, "cpu", "instance_group { kind: KIND_CPU }")
    with machine.serve(A100, H100) as server:
        assert "GPU 0: NVIDIA A100, 40.0 GiB, compute capability 8.0, GPU-aaaaaaaa-" in server.text
        assert "GPU 1: NVIDIA H100, 80.0 GiB, compute capability 9.0, GPU-bbbbbbbb-" in server.text
        assert groups_of(server, "plain") == [("KIND_GPU", 1, [0, 1])]
        assert groups_of(server, "auto") == [("KIND_GPU", 2, [1])]
        assert groups_of(server, "missing") == [("KIND_CPU", 1, [])]
        assert groups_of(server, "gpu") == [("KIND_GPU", 1, [0, 1])]
        assert groups_of(server, "second") == [("KIND_GPU", 1, [1])]
        assert groups_of(server, "cpu") == [("KIND_CPU", 1, [])]
        assert "instance group 'missing_0' of model 'missing' runs on the CPU: GPU 2 is not available" in server.text
        [second] = seen_by(server, "second", 1)
        assert second == {
            "model_instance_kind": "GPU",
            "model_instance_device_id": "1",
            "model_instance_name": "second_0_0",
            "visible": None,
        }
        [cpu] = seen_by(server, "cpu", 1)
        assert (cpu["model_instance_kind"], cpu["model_instance_device_id"]) == ("CPU", "0")
        seen = {
            (loaded["model_instance_kind"], loaded["model_instance_device_id"]) for loaded in seen_by(server, "gpu", 24)
        }
        assert seen == {("GPU", "0"), ("GPU", "1")}


def test_python_models_see_the_numbers_that_the_server_gives(machine: Machine) -> None:
    """`gpus: 0` is the first of CUDA_VISIBLE_DEVICES, in the server and in its processes, as in Triton."""
    write_model(machine.models, "first", "instance_group { kind: KIND_GPU gpus: [ 0 ] }")
    with machine.serve(A100, H100, CUDA_VISIBLE_DEVICES="1") as server:
        assert "GPU 0: NVIDIA H100" in server.text
        assert "GPU 1" not in server.text
        [first] = seen_by(server, "first", 1)
        assert (first["model_instance_device_id"], first["visible"]) == ("0", "1")


def test_a_missing_gpu_is_refused_by_number(machine: Machine) -> None:
    write_model(machine.models, "third", "instance_group { kind: KIND_GPU gpus: [ 2 ] }")
    flags = ("--exit-on-error=false", "--strict-readiness=false")
    with machine.serve(A100, H100, flags=flags) as server:
        said = "instance group third_0 of model third specifies invalid or unsupported gpu id 2"
        assert f"{said}. GPUs of this machine are: 0, 1" in server.text


@pytest.mark.parametrize(
    ("gpus", "variables"),
    [
        ((), {}),
        (("error 9",), {}),  # NVML_ERROR_DRIVER_NOT_LOADED: the library without a driver, as in many images
        ((A100,), {"CUDA_VISIBLE_DEVICES": ""}),
        ((A100,), {"NVIDIA_VISIBLE_DEVICES": "none"}),
    ],
)
def test_without_a_gpu_models_run_on_the_cpu(
    machine: Machine, gpus: tuple[str, ...], variables: dict[str, str]
) -> None:
    write_model(machine.models, "auto")
    write_model(machine.models, "gpu", "instance_group { kind: KIND_GPU gpus: [ 0 ] }")
    with machine.serve(*gpus, **variables) as server:
        assert groups_of(server, "auto") == [("KIND_CPU", 1, [])]
        assert groups_of(server, "gpu") == [("KIND_CPU", 1, [])]
        assert "has KIND_GPU, but no GPUs are available: it runs on the CPU" in server.text
        assert "NVML" not in server.text


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("error 18", "NVML cannot list the GPUs of this machine: RM has detected an NVML/RM version mismatch"),
        ("crash", "NVML cannot list the GPUs of this machine: its process exited with status -11"),
    ],
)
def test_a_driver_at_fault_is_logged_and_harms_nothing(machine: Machine, fault: str, said: str) -> None:
    write_model(machine.models, "auto")
    with machine.serve(fault) as server:
        assert f"{said}; models run without GPUs" in server.text
        assert groups_of(server, "auto") == [("KIND_CPU", 1, [])]


def test_gpus_below_the_required_compute_capability_are_left_out(machine: Machine) -> None:
    write_model(machine.models, "auto")
    with machine.serve(K80, H100) as server:
        assert groups_of(server, "auto") == [("KIND_GPU", 1, [1])]
        assert "GPU 0: Tesla K80" in server.text
        assert "is not used: --min-supported-compute-capability is 6.0" in server.text


def test_a_gpu_with_mig_is_used_by_its_first_slice(machine: Machine) -> None:
    write_model(machine.models, "auto")
    with machine.serve(f"{A100} {SLICES}") as server:
        assert groups_of(server, "auto") == [("KIND_GPU", 1, [0])]
        assert "MIG-11111111-" in server.text
        assert "MIG-22222222-" not in server.text
