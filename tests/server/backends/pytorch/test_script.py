"""TorchScript: names, datatypes, batches, failures."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conch.base.errors import BackendError, ConchError, ConfigError, InvalidRequest, ModelLoadError
from conch.domain.model_config import InstanceKind
from conch.domain.tensor import Tensor
from conch.machine.cores import usable_cores
from conch.server.backends.pytorch.backend import PyTorchBackend
from conch.server.backends.pytorch.torch_script import TorchScriptInstance
from tests.server.backends.pytorch.torch_models import Scaled, Sums, config_text, fp32, running, write_script

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")

PAIR = [("OUTPUT__0", "FP32", [2]), ("OUTPUT__1", "FP32", [2])]


def inputs(*names: str, datatype: str = "FP32", dims: tuple[int, ...] = (2,)) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(name, datatype, dims) for name in names]


@pytest.mark.parametrize(
    "names",
    [("b", "a"), ("INPUT__1", "INPUT__0"), ("left", "right")],
    ids=["arguments of forward", "places", "order"],
)
async def test_inputs_are_named_in_three_ways(tmp_path: Path, names: tuple[str, str]) -> None:
    first, second = names if names[0] == "left" else (names[1], names[0])
    directory = write_script(tmp_path / "m", Sums(), config_text(inputs(*names), PAIR, batch=4))
    async with running(directory) as model:
        got = await model.infer(**{second: fp32([1, 2]), first: fp32([10, 20])})
    assert got == {"OUTPUT__0": [[11, 22]], "OUTPUT__1": [[9, 18]]}


async def test_outputs_are_placed_by_name_or_by_order(tmp_path: Path) -> None:
    by_place = [("D__1", "FP32", [2])]
    by_order = [("SUM", "FP32", [2]), ("DIFFERENCE", "FP32", [2])]
    got = []
    for name, outputs in (("m1", by_place), ("m2", by_order)):
        directory = write_script(tmp_path / name, Sums(), config_text(inputs("a", "b"), outputs, batch=4))
        async with running(directory) as model:
            got.append(await model.infer(a=fp32([1, 2]), b=fp32([3, 3])))
    assert got == [{"D__1": [[-2, -1]]}, {"SUM": [[4, 5]], "DIFFERENCE": [[-2, -1]]}]


async def test_requests_of_several_sizes_share_a_run(tmp_path: Path) -> None:
    directory = write_script(tmp_path / "m", Sums(), config_text(inputs("a", "b"), PAIR, batch=8))
    async with running(directory) as model:
        got = await model.batch(
            {"a": fp32([1, 2]), "b": fp32([0, 0])},
            {"a": fp32([3, 4], [5, 6]), "b": fp32([1, 1], [1, 1])},
        )
    sums = [answer.output("OUTPUT__0").to_numpy().tolist() for answer in got if not isinstance(answer, ConchError)]
    assert sums == [[[1, 2]], [[4, 5], [6, 7]]]


class Same(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


@pytest.mark.parametrize(
    "datatype",
    ["BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BF16"],
)
async def test_datatypes(tmp_path: Path, datatype: str) -> None:
    directory = write_script(
        tmp_path / "m", Same(), config_text(inputs("x", datatype=datatype), inputs("y", datatype=datatype))
    )
    size = {"BOOL": 1, "BF16": 2}.get(datatype) or int(datatype.strip("UINTFP")) // 8
    sent = Tensor("x", datatype, (2,), b"\1" * (2 * size))
    async with running(directory) as model:
        (answer,) = await model.batch({"x": sent})
    assert not isinstance(answer, ConchError)
    (got,) = answer.outputs
    assert (got.datatype, got.shape, bytes(got.data)) == (datatype, (2,), bytes(sent.data))


class Words(torch.nn.Module):
    def forward(self, words: list[str]) -> tuple[list[str], torch.Tensor]:
        return [word + "!" for word in words], torch.tensor([len(word + "!") for word in words])


async def test_strings_are_lists(tmp_path: Path) -> None:
    config = config_text([("words", "STRING", [-1])], [("LOUD", "STRING", [-1]), ("LENGTH", "INT64", [-1])])
    async with running(write_script(tmp_path / "m", Words(), config)) as model:
        got = await model.infer(words=np.array([b"a", "zwölf".encode()], np.object_))
        with pytest.raises(InvalidRequest, match=r"'words': element 1 is not UTF-8 .*TorchScript must be UTF-8"):
            await model.infer(words=np.array([b"fine", b"\xff"], np.object_))
    assert got == {"LOUD": [b"a!", "zwölf!".encode()], "LENGTH": [2, 7]}


async def test_strings_of_a_batch_have_no_room_for_dims(tmp_path: Path) -> None:
    tensor = ("words", "STRING", [1])
    directory = write_script(tmp_path / "m", Words(), config_text([tensor], [("LOUD", "STRING", [1])], batch=4))
    with pytest.raises(ConfigError, match=r"List\[str\] in TorchScript.*'words' has \[-1, 1\].*reshape \{ \}"):
        async with running(directory):
            pass


class Loud(torch.nn.Module):
    def forward(self, words: list[str]) -> list[str]:
        return [word + "!" for word in words]


async def test_strings_of_a_batch(tmp_path: Path) -> None:
    tensors = [
        f'{kind} {{ name: "{kind}" data_type: TYPE_STRING dims: [ 1 ] reshape {{ }} }}' for kind in ("input", "output")
    ]
    directory = write_script(tmp_path / "m", Loud(), f'backend: "pytorch" max_batch_size: 4 {" ".join(tensors)}')
    async with running(directory) as model:
        # As the core reshapes them.
        got = await model.batch({"input": np.array([b"a"], np.object_)}, {"input": np.array([b"b", b"c"], np.object_)})
    outputs = [answer.output("output").to_numpy().tolist() for answer in got if not isinstance(answer, ConchError)]
    assert outputs == [[b"a!"], [b"b!", b"c!"]]


class Dictionary(torch.nn.Module):
    def forward(self, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"sum": given["left"] + given["right"]}


async def test_a_dictionary_goes_in_and_comes_out(tmp_path: Path) -> None:
    directory = write_script(
        tmp_path / "m", Dictionary(), config_text(inputs("left", "right"), [("sum", "FP32", [2])], batch=2)
    )
    async with running(directory) as model:
        assert await model.infer(left=fp32([1, 2]), right=fp32([1, 1])) == {"sum": [[2, 3]]}


class Greedy(torch.nn.Module):
    """Writes to its input, and hands out what it keeps."""

    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x.mul_(2)
        self.total.add_(x)
        return x, self.total


async def test_what_the_model_keeps_and_what_it_writes_to_are_its_own(tmp_path: Path) -> None:
    directory = write_script(
        tmp_path / "m", Greedy(), config_text(inputs("x"), [("Y", "FP32", [2]), ("TOTAL", "FP32", [2])])
    )
    sent = fp32(1, 2)
    async with running(directory) as model:
        first, second = [(await model.batch({"x": sent}))[0] for _ in range(2)]
    assert not isinstance(first, ConchError)
    assert not isinstance(second, ConchError)
    assert sent.tolist() == [1, 2]
    assert [answer.output("TOTAL").to_numpy().tolist() for answer in (first, second)] == [[2, 4], [4, 8]]


class Picky(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool((x < 0).any()):
            raise ValueError("negative: " + str(x.shape[0]))
        return x.sqrt()


async def test_only_those_fail_that_fail_alone(tmp_path: Path) -> None:
    directory = write_script(tmp_path / "m", Picky(), config_text(inputs("x"), [("y", "FP32", [2])], batch=8))
    async with running(directory) as model:
        good, bad, also_good = await model.batch({"x": fp32([4, 9])}, {"x": fp32([-1, 1])}, {"x": fp32([1, 1])})
    assert not isinstance(good, ConchError)
    assert not isinstance(also_good, ConchError)
    assert isinstance(bad, BackendError)
    # The last line of the trace, and where in the model's code it was.
    assert bad.message.startswith("PyTorch execute failure: ")
    assert "negative: 1" in bad.message
    assert f'(File "{__file__}", line ' in bad.message
    assert "\n" not in bad.message


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (
            [("OUTPUT__0", "FP64", [2]), ("OUTPUT__1", "FP32", [2])],
            "configuration expects datatype TYPE_FP64 for output 'OUTPUT__0', model provides TYPE_FP32",
        ),
        (
            [("OUTPUT__2", "FP32", [2])],
            (
                "The output OUTPUT__2 in the model configuration refers to an output index which doesn't exist. "
                "This model has 2 outputs"
            ),
        ),
        (
            [("OUTPUT__0", "STRING", [-1])],
            "configuration expects datatype TYPE_BYTES for output 'OUTPUT__0', model provides TYPE_FP32",
        ),
    ],
)
async def test_an_output_that_is_not_as_configured(tmp_path: Path, outputs: Any, message: str) -> None:
    directory = write_script(tmp_path / "m", Sums(), config_text(inputs("a", "b"), outputs))
    async with running(directory) as model:
        with pytest.raises(BackendError) as caught:
            await model.infer(a=fp32(1, 2), b=fp32(1, 2))
    assert caught.value.message == message


async def test_a_shape_that_the_model_cannot_take(tmp_path: Path) -> None:
    directory = write_script(
        tmp_path / "m", Scaled(), config_text(inputs("x", dims=(3,)), [("y", "FP32", [2])], batch=4)
    )
    async with running(directory) as model:
        with pytest.raises(BackendError, match=r"mat1 and mat2 shapes cannot be multiplied \(1x3 and 2x2\)"):
            await model.infer(x=fp32([1, 2, 3]))


async def test_an_output_that_is_not_per_item(tmp_path: Path) -> None:
    class Whole(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sum()

    directory = write_script(tmp_path / "m", Whole(), config_text(inputs("x"), [("y", "FP32", [1])], batch=4))
    async with running(directory) as model:
        with pytest.raises(BackendError, match=r"output 'y' has shape \[\] for a batch of 1.*max_batch_size: 0"):
            await model.infer(x=fp32([1, 2]))
    alone = write_script(tmp_path / "n", Whole(), config_text(inputs("x"), [("y", "FP32", [1])]))
    async with running(alone) as model:
        assert await model.infer(x=fp32(1, 2)) == {"y": [3]}


class Typed(torch.nn.Module):
    def forward(self, x: torch.Tensor, scale: float) -> torch.Tensor:
        return x * scale


@pytest.mark.parametrize(
    ("module", "names", "message"),
    [
        (Sums(), ["a"], r"expects 1 inputs, model provides 2: forward\(a, b\) lacks 'b'"),
        (Sums(), ["a__0", "b__2"], "input 'b__2' is argument 2 of forward, which has 2, counted from 0: a, b"),
        (Sums(), ["a__1", "b__1"], "inputs 'a__1' and 'b__1' both stand for place 1"),
        (Typed(), ["x", "scale"], "argument 'scale' of forward is float; only a single input of type Dict"),
    ],
)
async def test_inputs_that_the_model_does_not_have(
    tmp_path: Path, module: torch.nn.Module, names: list[str], message: str
) -> None:
    directory = write_script(tmp_path / "m", module, config_text(inputs(*names), PAIR))
    with pytest.raises(ConfigError, match=message):
        async with running(directory):
            pass


class Optional(torch.nn.Module):
    def forward(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return x if bias is None else x + bias


async def test_an_argument_with_a_default_may_be_left_out(tmp_path: Path) -> None:
    config = config_text(inputs("x"), [("y", "FP32", [2])])
    config += ' input { name: "bias" data_type: TYPE_FP32 dims: [ 2 ] optional: true }'
    async with running(write_script(tmp_path / "m", Optional(), config)) as model:
        assert await model.infer(x=fp32(1, 2)) == {"y": [1, 2]}
        assert await model.infer(x=fp32(1, 2), bias=fp32(1, 1)) == {"y": [2, 3]}


async def test_instances_may_share_weights(tmp_path: Path) -> None:
    def config(*parameters: str) -> str:
        more = " ".join(f'parameters {{ key: "{key}" value {{ string_value: "true" }} }}' for key in parameters)
        return config_text(inputs("x"), [("y", "FP32", [2])], batch=4, more=more)

    backend = PyTorchBackend()
    shared = write_script(tmp_path / "shared", Scaled(), config("ENABLE_WEIGHT_SHARING", "DISABLE_OPTIMIZED_EXECUTION"))
    apart = write_script(tmp_path / "apart", Scaled(), config())
    modules = []
    for directory in (shared, shared, apart, apart):
        async with (
            running(directory, siblings=2, backend=backend) as first,
            running(directory, backend=backend) as second,
        ):
            assert await first.infer(x=fp32([1, 1])) == await second.infer(x=fp32([1, 1])) == {"y": [[1, 2]]}
            assert isinstance(first.instance, TorchScriptInstance)
            assert isinstance(second.instance, TorchScriptInstance)
            modules.append(first.instance._module is second.instance._module)
    assert modules == [True, True, False, False]


async def test_instances_share_the_cores(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    asked = 'parameters { key: "INTRA_OP_THREAD_COUNT" value { string_value: "3" } }'
    outputs = [("y", "FP32", [2])]
    three = write_script(tmp_path / "m1", Same(), config_text(inputs("x"), outputs, more=asked))
    share = write_script(tmp_path / "m2", Same(), config_text(inputs("x"), outputs))
    before = torch.get_num_threads()
    async with running(three), running(share, siblings=usable_cores()), running(share):
        told = [record.getMessage() for record in caplog.records if "TorchScript on cpu" in record.getMessage()]
    assert [line.rpartition(", ")[2] for line in told] == ["3 threads", "1 threads", f"{usable_cores()} threads"]
    # Of the instances' own threads, not of this one.
    assert torch.get_num_threads() == before


async def test_what_holds_for_the_process_is_the_first_model_s(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def write(name: str, value: str) -> Path:
        more = f'parameters {{ key: "ENABLE_TENSOR_FUSER" value {{ string_value: "{value}" }} }}'
        return write_script(tmp_path / name, Same(), config_text(inputs("x"), [("y", "FP32", [2])], more=more))

    backend = PyTorchBackend()
    before = torch._C._jit_texpr_fuser_enabled()
    try:
        for name, value in (("first", "false"), ("second", "false"), ("third", "true")):
            async with running(write(name, value), backend=backend):
                assert not torch._C._jit_texpr_fuser_enabled()
    finally:
        torch._C._jit_set_texpr_fuser_enabled(before)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        (
            "parameter 'ENABLE_TENSOR_FUSER' of model 'third' has no effect: it applies to the whole process, and "
            "model 'first' has set it to False"
        )
    ]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("INFERENCE_MODE", "yes", "parameter 'INFERENCE_MODE' must be one of 1, true, 0, false; got 'yes'"),
        ("INTRA_OP_THREAD_COUNT", "many", "parameter 'INTRA_OP_THREAD_COUNT' must be a whole number, got 'many'"),
        ("ENABLE_NVFUSER", "true", "'ENABLE_NVFUSER' of model 'm': PyTorch has no NvFuser any more"),
    ],
)
async def test_a_parameter_that_makes_no_sense(tmp_path: Path, key: str, value: str, message: str) -> None:
    more = f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
    directory = write_script(tmp_path / "m", Same(), config_text(inputs("x"), [("y", "FP32", [2])], more=more))
    with pytest.raises(ConfigError, match=message):
        async with running(directory):
            pass


@pytest.mark.skipif(torch.cuda.is_available(), reason="this PyTorch has CUDA")
async def test_without_cuda_a_gpu_instance_runs_on_the_cpu(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = write_script(tmp_path / "m", Scaled(), config_text(inputs("x"), [("y", "FP32", [2])], batch=4))
    async with running(directory, kind=InstanceKind.GPU) as model:
        assert await model.infer(x=fp32([1, 1])) == {"y": [[1, 2]]}
    assert "instance 'm_0' is KIND_GPU, but this PyTorch has no CUDA: it runs on the CPU" in caplog.text


async def test_kind_model_leaves_the_device_to_the_model(tmp_path: Path) -> None:
    directory = write_script(tmp_path / "m", Scaled(), config_text(inputs("x"), [("y", "FP32", [2])], batch=4))
    async with running(directory, kind=InstanceKind.MODEL) as model:
        assert await model.infer(x=fp32([1, 1])) == {"y": [[1, 2]]}


class _Reads(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.from_file("/etc/passwd", False, 4, dtype=torch.float32)


class _Writes(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.save(x, "/tmp/written-by-a-model")
        return x


@pytest.mark.parametrize("module", [_Reads(), _Writes()])
async def test_a_program_that_opens_files_is_not_loaded(tmp_path: Path, module: torch.nn.Module) -> None:
    io = config_text(inputs("x"), PAIR[:1])
    directory = write_script(tmp_path / "m", module, io)
    with pytest.raises(ModelLoadError, match=r"opens files .* serve a model.py, which runs in a separate one"):
        async with running(directory):
            pass
