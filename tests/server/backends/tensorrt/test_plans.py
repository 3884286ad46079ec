"""Plans on a GPU; and what is said where something that they need is missing."""

import asyncio
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from conch.base.errors import ConchError, ModelLoadError
from conch.base.extras import install_command
from conch.domain.config.resolve import resolve
from conch.domain.model_config import InstanceKind, ModelConfig
from conch.domain.request import InferRequest
from conch.domain.tensor import Tensor
from conch.server.backends.base import InstancePlan, ModelSource
from conch.server.backends.batch import Batch
from conch.server.backends.registry import load_backend
from conch.server.repository.store import Repository
from tests.server.backends.python.running import Caller


def why_not() -> str:
    """Why no plan can be run here, "" if it can."""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout
    except OSError:
        listed = ""
    if "GPU 0" not in listed:
        return "nvidia-smi, which asks NVML, finds no GPU"
    missing = [name for name in ("tensorrt", "cuda") if find_spec(name) is None]
    return f"the package '{missing[0]}' is not installed" if missing else ""


NOT_HERE = why_not()


@pytest.mark.skipif(find_spec("tensorrt") is not None, reason="tensorrt is installed")
def test_without_the_package_the_cure_is_named() -> None:
    with pytest.raises(ModelLoadError) as caught:
        load_backend("tensorrt", {})
    assert caught.value.message == (f"backend 'tensorrt' needs the package 'tensorrt': {install_command('tensorrt')}")


def write_plan(directory: Path, *profiles: tuple[int, int, int], config: str = 'backend: "tensorrt"') -> Path:
    """SUM = X + X for X of [-1, 3]; a profile is the smallest, best and largest batch."""
    import tensorrt as trt

    kind = helper.make_tensor_value_info("X", TensorProto.FLOAT, ["n", 3])
    result = helper.make_tensor_value_info("SUM", TensorProto.FLOAT, ["n", 3])
    graph = helper.make_graph([helper.make_node("Add", ["X", "X"], ["SUM"])], "graph", [kind], [result])
    model: Any = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, logger)
    assert parser.parse(model.SerializeToString()), parser.get_error(0)
    options = builder.create_builder_config()
    for sizes in profiles:
        profile = builder.create_optimization_profile()
        profile.set_shape("X", *((size, 3) for size in sizes))
        options.add_optimization_profile(profile)
    (directory / "1").mkdir(parents=True)
    (directory / "config.pbtxt").write_text(config)
    (directory / "1" / "model.plan").write_bytes(bytes(builder.build_serialized_network(network, options)))
    return directory


async def complete(directory: Path, backend: Any) -> ModelConfig:
    files = Repository([directory.parent]).read(directory.name)
    document = await backend.complete(ModelSource(files.config, 1, directory, {}))
    return resolve(document, backend=backend, gpus=[0]).config


async def ask(instance: Any, *batches: list[list[float]]) -> list[Any]:
    callers = []
    for rows in batches:
        request = InferRequest("m", [Tensor.from_numpy("X", np.array(rows, np.float32))])
        request.batch_size = len(rows)
        callers.append(Caller(request))
    released = asyncio.Event()
    instance.execute(Batch(callers, lambda _: released.set()))
    answers = [await caller.finished() for caller in callers]
    await released.wait()
    return answers


@pytest.mark.gpu
@pytest.mark.skipif(bool(NOT_HERE), reason=NOT_HERE or "it runs")
async def test_a_plan_runs(tmp_path: Path) -> None:
    directory = write_plan(tmp_path / "m", (1, 2, 4), (1, 16, 32))
    backend = load_backend("tensorrt", {})
    config = await complete(directory, backend)
    assert (config.max_batch_size, config.platform) == (32, "tensorrt_plan")
    assert [(spec.name, spec.datatype, spec.dims) for spec in (*config.inputs, *config.outputs)] == [
        ("X", "FP32", (3,)),
        ("SUM", "FP32", (3,)),
    ]
    document = {**config.document, "max_batch_size": 32}
    document["instance_group"] = [{**document["instance_group"][0], "profile": ["0", "1"]}]
    config = resolve(document, backend=backend, gpus=[0]).config
    source = ModelSource(config, 1, directory, {})
    name = f"{config.instance_groups[0].name}_0"
    instance = backend.instance(InstancePlan(source, name, InstanceKind.GPU, 0, 1))
    await instance.start()
    try:
        first, second = await ask(instance, [[1, 2, 3]], [[4, 5, 6], [7, 8, 9]])
        assert first.output("SUM").to_numpy().tolist() == [[2, 4, 6]]
        assert second.output("SUM").to_numpy().tolist() == [[8, 10, 12], [14, 16, 18]]
        # Of the second profile, and of none.
        (many,) = await ask(instance, [[1, 1, 1]] * 20)
        assert many.output("SUM").shape == (20, 3)
        (too_many,) = await ask(instance, [[1, 1, 1]] * 40)
        assert isinstance(too_many, ConchError)
        assert "invalid shape [40, 3] for input 'X'" in too_many.message
    finally:
        await instance.stop()


@pytest.mark.gpu
@pytest.mark.skipif(bool(NOT_HERE), reason=NOT_HERE or "it runs")
async def test_a_file_that_is_not_a_plan(tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.plan").write_bytes(b"nonsense" * 100)
    with pytest.raises(ModelLoadError, match=r"unable to load plan .*build it with TensorRT"):
        await complete(tmp_path / "m", load_backend("tensorrt", {}))
