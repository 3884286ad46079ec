"""Weights in other files: only those of the model's folder are read, as a model may come from a client."""

from pathlib import Path

import pytest
from onnx import TensorProto, helper

from conch.base.errors import ModelLoadError
from conch.server.backends.onnxruntime import backend as module
from conch.server.backends.onnxruntime.backend import OnnxRuntimeBackend
from tests.server.backends.driving import complete, plan


def write(root: Path, location: str) -> Path:
    """Write a model whose output is 16 bytes of a file."""
    weights = TensorProto(
        name="W", data_type=TensorProto.UINT8, dims=[16], data_location=TensorProto.DataLocation.EXTERNAL
    )
    weights.external_data.add(key="location", value=location)
    weights.external_data.add(key="length", value="16")
    graph = helper.make_graph(
        [helper.make_node("Identity", ["W"], ["OUT"])],
        "g",
        [],
        [helper.make_tensor_value_info("OUT", TensorProto.UINT8, [16])],
        [weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (root / "m" / "1").mkdir(parents=True)
    (root / "m" / "1" / "model.onnx").write_bytes(model.SerializeToString())
    (root / "m" / "config.pbtxt").write_text('backend: "onnxruntime"')
    (root / "secret").write_bytes(b"sixteen secrets!")
    return root / "m"


@pytest.mark.parametrize("kind", ["absolute", "above", "link"])
async def test_weights_elsewhere_are_refused(tmp_path: Path, kind: str) -> None:
    location = {"absolute": str(tmp_path / "secret"), "above": "../../secret", "link": "weights"}[kind]
    directory = write(tmp_path, location)
    (directory / "1" / "weights").symlink_to(tmp_path / "secret")
    with pytest.raises(ModelLoadError, match=r"[Ee]xternal data"):
        await complete(directory)


@pytest.mark.parametrize("version", ["1.20.0", "1.23.2"])
async def test_versions_that_read_weights_elsewhere_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """Measured with 1.20.0 and 1.23.2, which returned the bytes of the secret for all three kinds."""
    monkeypatch.setattr(module.ort, "__version__", version)
    directory = write(tmp_path, "../../secret")
    with pytest.raises(
        ModelLoadError, match=rf"onnxruntime {version} also reads outside .* install onnxruntime>=1\.24"
    ):
        await complete(directory)


async def test_weights_beside_the_model_are_read(tmp_path: Path) -> None:
    directory = write(tmp_path, "weights")
    (directory / "1" / "weights").write_bytes(b"sixteen letters!")
    document = await complete(directory)
    instance = OnnxRuntimeBackend().instance(plan(directory, document))
    await instance.start()
    await instance.stop()
