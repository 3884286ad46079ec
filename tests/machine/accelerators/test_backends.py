"""What each framework is given on a machine with two GPUs: a whole server, and frameworks that record and have none.

No GPU is computed on. Sessions and modules are opened on the CPU once what they were given has been noted.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import onnxruntime
import pytest
import torch

from conch.server.backends.pytorch import backend as pytorch_backend
from conch.server.options.parser import parse
from conch.server.server import Server
from tests.machine.accelerators.nvml import A100, H100, gpu, machine_with
from tests.processes import command_lines
from tests.server.backends.onnxruntime.onnx_models import FP32, write_identity
from tests.server.backends.pytorch.torch_models import Doubled, config_text, write_script
from tests.support.models import ECHO, tensor, write_config, write_python, write_scripted

BOTH = "instance_group { kind: KIND_GPU }"


@pytest.fixture(autouse=True)
def two_gpus(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in machine_with(library, tmp_path, A100, H100).items():
        monkeypatch.setenv(name, value)
    for variable in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
        monkeypatch.delenv(variable, raising=False)
    # This process read LD_LIBRARY_PATH when it began; the one that asks NVML reads it again.
    monkeypatch.setattr("conch.machine.accelerators.collectors.NVIDIA_LIBRARY", str(library / "libnvidia-ml.so.1"))


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


TENSORS = f"input {tensor('INPUT0', 'FP32', 4)} output {tensor('OUTPUT0', 'FP32', 4)}"


def server_of(models: Path, *flags: str) -> Server:
    ports = [f"--{name}-port=0" for name in ("http", "grpc", "metrics")]
    local = ["--http-address=127.0.0.1", "--grpc-address=127.0.0.1"]
    return Server(parse([f"--model-repository={models}", *ports, *local, *flags], {}))


def groups_of(server: Server, name: str) -> list[tuple[str, int, list[int]]]:
    groups = server.inference.model(name, None).config.instance_groups
    return [(group.kind.value, group.count, list(group.gpus)) for group in groups]


def states_of(server: Server) -> Mapping[str, tuple[str, str]]:
    return {row.name: (row.state, row.reason) for row in server.control.index(ready_only=False)}


async def test_a_load_above_the_limit_of_a_gpu_is_refused(
    models: Path, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in machine_with(library, tmp_path, gpu(A100, memory_used=4 << 30), gpu(H100)).items():
        monkeypatch.setenv(name, value)
    for number in (0, 1):
        write_python(models, f"on{number}", f"{TENSORS} instance_group {{ kind: KIND_GPU gpus: [{number}] }}", ECHO)
    write_python(models, "on_cpu", f"{TENSORS} instance_group {{ kind: KIND_CPU }}", ECHO)
    server = server_of(models, "--model-load-gpu-limit=0:0.01", "--model-load-gpu-limit=1:0.9", "--exit-on-error=false")
    async with server.running():
        states = states_of(server)
        assert states["on0"][0] == "UNAVAILABLE"
        assert (
            "can not create model 'on0': memory limit set for GPU 0 has exceeded, model loading is rejected"
            in (states["on0"][1])
        )
        assert (states["on1"][0], states["on_cpu"][0]) == ("READY", "READY")


# ---- onnxruntime -----------------------------------------------------------------------------------------------------


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, dict[str, str]]]:
    """The providers with their options that each session was asked for, on an onnxruntime that says it has CUDA."""
    asked: list[dict[str, dict[str, str]]] = []
    real = onnxruntime.InferenceSession

    def open_session(path: str, options: Any, providers: list[Any]) -> Any:
        named = [provider for provider in providers if not isinstance(provider, str)]
        if named:
            asked.append(dict(named))
        return real(path, options, providers=["CPUExecutionProvider"])

    monkeypatch.setattr(onnxruntime, "InferenceSession", open_session)
    available = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: available)
    return asked


async def test_onnxruntime_is_given_the_device(models: Path, sessions: list[dict[str, dict[str, str]]]) -> None:
    more = 'parameters { key: "gpu_mem_limit" value { string_value: "1000" } }'
    write_identity(models / "auto", FP32, [None, 4], config=f'backend: "onnxruntime" {more}')
    async with server_of(models).running() as server:
        assert groups_of(server, "auto") == [("KIND_GPU", 1, [0, 1])]
    devices = [options["CUDAExecutionProvider"]["device_id"] for options in sessions]
    assert sorted(devices) == ["0", "1"]
    assert {options["CUDAExecutionProvider"]["gpu_mem_limit"] for options in sessions} == {"1000"}


async def test_onnxruntime_gives_its_accelerators_the_device(
    models: Path, sessions: list[dict[str, dict[str, str]]]
) -> None:
    accelerator = 'optimization { execution_accelerators { gpu_execution_accelerator { name: "tensorrt" } } }'
    config = f'backend: "onnxruntime" {accelerator} instance_group {{ kind: KIND_GPU gpus: [ 1 ] }}'
    write_identity(models / "second", FP32, [None, 4], config=config)
    async with server_of(models).running():
        pass
    assert [list(options) for options in sessions] == [
        ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]
    ]
    assert sessions[0]["TensorrtExecutionProvider"]["device_id"] == "1"
    assert sessions[0]["CUDAExecutionProvider"]["device_id"] == "1"


async def test_onnxruntime_without_cuda_uses_the_cpu_by_default(models: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_identity(models / "auto", FP32, [None, 4])
    write_identity(models / "told", FP32, [None, 4], config=f'backend: "onnxruntime" {BOTH}')
    async with server_of(models).running() as server:
        assert groups_of(server, "auto") == [("KIND_CPU", 2, [])]
        assert groups_of(server, "told") == [("KIND_GPU", 1, [0, 1])]
    assert "instance 'told_0_1' is KIND_GPU, but this onnxruntime has no CUDA: it runs on the CPU" in caplog.text


async def test_the_file_follows_from_the_compute_capability(
    models: Path, sessions: list[dict[str, dict[str, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    recording = onnxruntime.InferenceSession

    def open_session(path: str, options: Any, providers: list[Any]) -> Any:
        opened.append(f"{Path(path).name} {dict(providers)['CUDAExecutionProvider']['device_id']}")
        return recording(path, options, providers=providers)

    names = f"input {tensor('IN', 'FP32', 4)} output {tensor('OUT', 'FP32', 4)} max_batch_size: 2"
    files = 'cc_model_filenames { key: "9.0" value: "hopper.onnx" }'
    folder = write_identity(models / "m", FP32, [None, 4], config=f'backend: "onnxruntime" {names} {files}')
    (folder / "1" / "hopper.onnx").write_bytes((folder / "1" / "model.onnx").read_bytes())
    monkeypatch.setattr(onnxruntime, "InferenceSession", open_session)
    async with server_of(models).running():
        pass
    assert sorted(opened) == ["hopper.onnx 1", "model.onnx 0"]


# ---- PyTorch ---------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
async def test_pytorch_is_given_the_device(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    real = torch.jit.load

    def load(path: str, map_location: torch.device | None) -> Any:
        loaded.append(str(map_location))
        return real(path, map_location="cpu")  # type: ignore[no-untyped-call]

    monkeypatch.setattr(torch.jit, "load", load)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    # As in the wheels with CUDA; here the value is None.
    (tmp_path / "version.py").write_text("__version__ = '2.13.0+cu130'\ncuda: str | None = '13.0'\nhip = None\n")
    monkeypatch.setattr(pytorch_backend, "_TORCH", tmp_path)
    text = config_text([("IN", "FP32", [4])], [("OUT", "FP32", [4])])
    write_script(models / "auto", Doubled(), text)
    async with server_of(models).running() as server:
        assert groups_of(server, "auto") == [("KIND_GPU", 1, [0, 1])]
    assert sorted(device for device in loaded if device != "cpu") == ["cuda:0", "cuda:1"]


# ---- TensorRT --------------------------------------------------------------------------------------------------------


class _Logger:
    INTERNAL_ERROR, ERROR, WARNING = range(3)


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The devices that threads chose, with a TensorRT that reads no plan and a CUDA without memory."""
    chosen: list[int] = []

    def set_device(number: int) -> tuple[int]:
        chosen.append(number)
        return (0,)

    names = ("BOOL", "UINT8", "INT8", "INT32", "INT64", "HALF", "BF16", "FLOAT")
    runtime = SimpleNamespace(
        cudaError_t=SimpleNamespace(cudaSuccess=0),
        cudaStreamNonBlocking=1,
        cudaGetDeviceCount=lambda: (0, 2),
        cudaSetDevice=set_device,
        cudaStreamCreateWithFlags=lambda _: (0, 7),
        cudaStreamDestroy=lambda _: (0,),
    )
    reader = SimpleNamespace(deserialize_cuda_engine=lambda _: None)
    fields = {
        "__version__": "10.0",
        "DataType": SimpleNamespace(**{name: name for name in names}),
        "ILogger": _Logger,
        "Runtime": lambda _: reader,
    }
    for name, content in (
        ("tensorrt", fields),
        ("cuda", {}),
        ("cuda.bindings", {"driver": SimpleNamespace(), "runtime": runtime}),
    ):
        module = ModuleType(name)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("tensorrt.backend", "tensorrt.device", "cuda_runtime"):
        monkeypatch.delitem(sys.modules, f"conch.server.backends.{name}", raising=False)
    yield chosen
    for name in ("tensorrt.backend", "tensorrt.device", "cuda_runtime"):
        sys.modules.pop(f"conch.server.backends.{name}", None)


async def test_tensorrt_is_given_the_device(models: Path, devices: list[int]) -> None:
    names = f"input {tensor('IN', 'FP32', 4)} output {tensor('OUT', 'FP32', 4)}"
    folder = write_config(models, "plan", f'backend: "tensorrt" {names}')
    (folder / "1" / "model.plan").write_bytes(b"a plan")
    async with server_of(models).running() as server:
        state, reason = states_of(server)["plan"]
    assert state == "UNAVAILABLE"
    assert "unable to load plan" in reason
    assert "KIND_CPU" not in reason
    assert set(devices) == {0, 1}


# ---- engines ---------------------------------------------------------------------------------------------------------


def environment_of_engine(model: str) -> Mapping[str, str]:
    """The environment of the process that runs a model's engine."""
    for child, line in command_lines(os.getpid()):
        if any("engine_main.py" in word for word in line):
            return child.environ()
    raise AssertionError(f"no engine runs for {model}")


@pytest.mark.parametrize(("visible", "expected"), [(None, "1"), ("GPU-bbbb,0", "0")])
async def test_an_engine_sees_the_gpus_of_its_instance_group(
    models: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, expected: str
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    write_scripted(models, "one", {"reply": "yes"}, extra="instance_group { kind: KIND_GPU gpus: [ 1 ] }")
    async with server_of(models).running():
        assert environment_of_engine("one")["CUDA_VISIBLE_DEVICES"] == expected


async def test_an_engine_without_such_a_group_sees_what_the_server_sees(models: Path) -> None:
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
    write_scripted(models, "free", {"reply": "yes"}, extra="instance_group { kind: KIND_MODEL }")
    async with server_of(models).running():
        assert "CUDA_VISIBLE_DEVICES" not in environment_of_engine("free")
