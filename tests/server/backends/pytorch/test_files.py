"""What is loaded and what is refused; which names stand for what; what a program says of itself."""

import json
import pickle
from pathlib import Path
from zipfile import ZipFile

import pytest
import torch

from conch.base.errors import ConchError, ConfigError, ModelLoadError
from conch.server.backends.pytorch.archive import Format, exported_signature, open_archive
from conch.server.backends.pytorch.naming import input_places, output_places
from tests.server.backends.pytorch.torch_models import (
    Scaled,
    Sums,
    complete,
    config_text,
    running,
    write_exported,
    write_script,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning", "ignore:.*LeafSpec.*:FutureWarning")

BATCH = torch.export.Dim("batch", min=1, max=64)
SUMS = ((torch.rand(2, 3), torch.rand(2, 3)), {"a": {0: BATCH}, "b": {0: BATCH}})


class Trap:
    """Unpickled, it would make a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def write_file(directory: Path, content: bytes = b"", filename: str = "model.pt") -> Path:
    (directory / "1").mkdir(parents=True)
    tensors = [("x", "FP32", [2])]
    (directory / "config.pbtxt").write_text(config_text(tensors, [("y", "FP32", [2])]))
    path = directory / "1" / filename
    path.write_bytes(content)
    return path


async def refusal(directory: Path) -> str:
    """What is said when an instance is made."""
    with pytest.raises(ConchError) as caught:
        await load(directory)
    return caught.value.message


async def load(directory: Path) -> None:
    async with running(directory):
        pass


@pytest.mark.parametrize("new_format", [True, False], ids=["zip", "legacy"])
async def test_a_pickle_is_refused_and_not_looked_into(tmp_path: Path, *, new_format: bool) -> None:
    sprung = tmp_path / "sprung"
    path = write_file(tmp_path / "m")
    torch.save(Trap(sprung), path, _use_new_zipfile_serialization=new_format)
    message = await refusal(tmp_path / "m")
    assert "can run any code; save the model with torch.jit.save or torch.export.save" in message
    assert 'runtime: "model.py"' in message
    assert not sprung.exists()


async def test_a_pickle_inside_a_program_is_refused(tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    directory = write_exported(tmp_path / "m", Scaled(), (torch.rand(2, 2),))
    path = directory / "1" / "model.pt2"
    with ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    config = next(name for name in members if name.endswith("model_weights_config.json"))
    weights = json.loads(members[config])
    (entry,) = weights["config"].values()
    entry["use_pickle"] = True
    members[config] = json.dumps(weights).encode()
    members[config.replace("model_weights_config.json", entry["path_name"])] = pickle.dumps(Trap(sprung))
    with ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
    with pytest.raises(ModelLoadError, match="holds 'weight' as a pickle, which is not loaded"):
        await complete(directory)
    assert not sprung.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "is damaged or not a PyTorch file"), (b"PK\3\4 half a file", "is damaged or not a PyTorch file")],
)
async def test_a_file_that_is_nothing(tmp_path: Path, content: bytes, message: str) -> None:
    write_file(tmp_path / "m", content)
    assert message in await refusal(tmp_path / "m")


async def test_a_damaged_module(tmp_path: Path) -> None:
    directory = write_script(tmp_path / "m", Scaled(), config_text([("x", "FP32", [2])], [("y", "FP32", [2])]))
    path = directory / "1" / "model.pt"
    with ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    with ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(name, b"nonsense" if name.endswith("constants.pkl") else content)
    message = await refusal(directory)
    assert message.startswith("failed to load model 'm': ")
    assert message.endswith(f"('{path}')")


async def test_another_zip_archive(tmp_path: Path) -> None:
    path = write_file(tmp_path / "m")
    with ZipFile(path, "w") as file:
        file.writestr("folder/readme", "hello")
    assert "is a zip archive, but neither TorchScript nor of torch.export" in await refusal(tmp_path / "m")


async def test_no_file(tmp_path: Path) -> None:
    write_file(tmp_path / "m", filename="model.py")
    message = await refusal(tmp_path / "m")
    assert 'the folder holds model.py; to serve model.py, write runtime: "model.py" in config.pbtxt' in message


async def test_formats(tmp_path: Path) -> None:
    script = write_script(tmp_path / "script", Sums(), None)
    program = write_exported(tmp_path / "program", Sums(), SUMS[0], dynamic_shapes=SUMS[1])
    assert open_archive(script / "1" / "model.pt").format is Format.TORCHSCRIPT
    assert open_archive(program / "1" / "model.pt2").format is Format.EXPORTED


async def test_a_program_completes_its_configuration(tmp_path: Path) -> None:
    directory = write_exported(tmp_path / "m", Sums(), SUMS[0], None, dynamic_shapes=SUMS[1])
    config = await complete(directory, **{"default-max-batch-size": "16"})
    assert (config.backend, config.platform, config.max_batch_size) == ("pytorch", "torch_aoti", 16)
    assert [(spec.name, spec.datatype, spec.dims) for spec in config.inputs] == [
        ("a", "FP32", (3,)),
        ("b", "FP32", (3,)),
    ]
    assert [(spec.name, spec.datatype, spec.dims) for spec in config.outputs] == [
        ("OUTPUT__0", "FP32", (3,)),
        ("OUTPUT__1", "FP32", (3,)),
    ]
    assert config.dynamic_batching is not None


def test_a_program_says_every_datatype(tmp_path: Path) -> None:
    class Each(torch.nn.Module):
        def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return tuple(tensor.clone() for tensor in tensors)

    dtypes = {
        torch.bool: "BOOL",
        torch.uint8: "UINT8",
        torch.uint16: "UINT16",
        torch.int8: "INT8",
        torch.int16: "INT16",
        torch.int32: "INT32",
        torch.int64: "INT64",
        torch.float16: "FP16",
        torch.bfloat16: "BF16",
        torch.float32: "FP32",
        torch.float64: "FP64",
    }
    example = tuple(torch.zeros(2, dtype=dtype) for dtype in dtypes)
    directory = write_exported(tmp_path / "m", Each(), example)
    signature = exported_signature(open_archive(directory / "1" / "model.pt2"))
    assert [info.datatype for info in signature.inputs] == list(dtypes.values())
    assert [info.datatype for info in signature.outputs] == list(dtypes.values())


async def test_a_script_needs_a_configuration(tmp_path: Path) -> None:
    directory = write_script(tmp_path / "m", Sums(), None)
    with pytest.raises(ConfigError) as caught:
        await complete(directory)
    assert "a TorchScript file has no datatypes and shapes; declare them in config.pbtxt" in (caught.value.message)
    # What is proposed has the model's own names.
    assert 'input { name: "a" data_type: TYPE_FP32 dims: [ -1 ] } input { name: "b" ' in caught.value.message


@pytest.mark.parametrize(
    ("names", "arguments", "places"),
    [
        (["b", "a"], ["a", "b", "c"], {"b": 1, "a": 0}),
        (["x__1", "y__0"], ["a", "b"], {"x__1": 1, "y__0": 0}),
        # One name that is not an argument: all by place or by order.
        (["b", "x__0"], ["a", "b"], {"b": 0, "x__0": 1}),
        (["ARGS[1]", "ARGS[0]"], [], {"ARGS[1]": 1, "ARGS[0]": 0}),
        # The first two underscores count.
        (["a__b__1", "c__0"], [], {"a__b__1": 0, "c__0": 1}),
        (["a__", "b__"], [], {"a__": 0, "b__": 1}),
        (["a__1\n"], [], {"a__1\n": 0}),
        (["a__²"], [], {"a__²": 0}),
    ],
)
def test_places_of_inputs(names: list[str], arguments: list[str], places: dict[str, int]) -> None:
    assert input_places("m", names, arguments) == places


def test_places_of_outputs() -> None:
    assert output_places("m", ["RESULT"]) == {"RESULT": 0}
    assert output_places("m", ["RESULT[1]", "RESULT[0]"]) == {"RESULT[1]": 1, "RESULT[0]": 0}
    assert output_places("m", ["scores", "OUTPUT__0"]) == {"scores": 0, "OUTPUT__0": 1}
    with pytest.raises(ConfigError, match="outputs 'a__0' and 'b__0' both stand for place 0"):
        output_places("m", ["a__0", "b__0"])
