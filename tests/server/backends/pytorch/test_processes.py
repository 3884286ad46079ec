"""Models that run in separate processes: code with weights, exported programs, compiled packages."""

import asyncio
import os
import shutil
from pathlib import Path
from textwrap import dedent

import pytest
import torch

from conch.base.errors import BackendError, ConchError, ModelLoadError
from conch.server.backends.pytorch.backend import PyTorchBackend
from tests.server.backends.pytorch.torch_models import (
    Scaled,
    Sums,
    config_text,
    fp32,
    running,
    write_code,
    write_exported,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning", "ignore:.*torch.jit.*:DeprecationWarning")

CODE = dedent("""
    import os
    import torch

    class Layer(torch.nn.Linear):
        pass

    class AModel(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = Layer(2, 2, bias=False)

        def forward(self, x, y):
            if bool((x < 0).any()):
                raise ValueError(f"negative\\nin process {os.getpid()}")
            return self.layer(x) + y, torch.full(x.shape[:1], os.getpid()), y.to(torch.bfloat16)
""")
OUTPUTS = [("SUM", "FP32", [2]), ("PID", "INT64", [1]), ("HALF", "BF16", [2])]
RUNTIME = 'runtime: "model.py"'
# Compile what is needed, and that without optimization; else there are headers and attempts that take longer.
QUICK = {
    "cpp.vec_isa_ok": True,
    "aot_inductor.precompile_headers": False,
    "aot_inductor.compile_wrapper_opt_level": "O0",
}
STATE = {"layer.weight": torch.tensor([[1.0, 0.0], [0.0, 2.0]])}


async def test_code_with_weights_runs_in_a_process(tmp_path: Path) -> None:
    config = config_text(
        [("x", "FP32", [2]), ("y", "FP32", [2])],
        OUTPUTS,
        batch=8,
        # Compiled by the compiler that leaves all as it is.
        more=f'{RUNTIME} parameters {{ key: "TORCH_COMPILE_OPTIONAL_PARAMETERS" '
        'value { string_value: "{\\"disable\\": true}" } }',
    ).replace('name: "PID" data_type: TYPE_INT64 dims: [1]', 'name: "PID" data_type: TYPE_INT64 dims: [1] reshape { }')
    async with running(write_code(tmp_path / "m", CODE, config, STATE)) as model:
        first, second, bad = await model.batch(
            {"x": fp32([1, 1]), "y": fp32([0, 0])},
            {"x": fp32([1, 2], [3, 4]), "y": fp32([10, 10], [20, 20])},
            {"x": fp32([-1, 1]), "y": fp32([0, 0])},
        )
        assert not isinstance(first, ConchError)
        assert not isinstance(second, ConchError)
        assert first.output("SUM").to_numpy().tolist() == [[1, 2]]
        assert second.output("SUM").to_numpy().tolist() == [[11, 14], [23, 28]]
        assert second.output("PID").to_numpy().tolist() == [first.output("PID").to_numpy().item()] * 2
        assert first.output("PID").to_numpy().item() != os.getpid()
        half = second.output("HALF")
        assert (half.datatype, half.shape, bytes(half.data)) == ("BF16", (2, 2), b"\x20\x41\x20\x41\xa0\x41\xa0\x41")
        assert isinstance(bad, BackendError)
        assert bad.message == "PyTorch execute failure: ValueError: negative"


@pytest.mark.parametrize("what", ["pickle", "no module", "wrong weights", "strings"])
async def test_code_that_cannot_be_served(tmp_path: Path, what: str) -> None:
    tensor = ("x", "STRING" if what == "strings" else "FP32", [2])
    directory = write_code(
        tmp_path / "m",
        "import torch" if what == "no module" else CODE,
        config_text([tensor, ("y", "FP32", [2])], OUTPUTS, more=RUNTIME),
        {"other": torch.zeros(1)} if what == "wrong weights" else None,
    )
    if what == "pickle":
        torch.save(Sums(), directory / "1" / "model.pt")
    said = {
        "pickle": "Weights only load failed",
        "no module": "Cannot find a subclass of torch.nn.Module in",
        "wrong weights": "Missing key",
        "strings": "'x' is TYPE_STRING, which only TorchScript can take",
    }
    with pytest.raises(ConchError, match=said[what]):
        async with running(directory):
            pass


class Structured(torch.nn.Module):
    def forward(self, given: dict[str, torch.Tensor], *, bias: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"sum": given["a"] + given["b"] + bias, "first": given["a"]}


async def test_exported_programs(tmp_path: Path) -> None:
    batch = torch.export.Dim("batch", min=1, max=64)
    # Not the same tensor thrice, which a program would take for one.
    example, another, third = torch.rand(3, 2, 3)
    plain = write_exported(
        tmp_path / "plain", Sums(), (example, another), dynamic_shapes={"a": {0: batch}, "b": {0: batch}}
    )
    # Names of places, which are held against the program's datatypes and shapes all the same.
    placed = write_exported(
        tmp_path / "placed",
        Structured(),
        ({"a": example, "b": another},),
        config_text(
            [("INPUT__2", "FP32", [2, 3]), ("INPUT__0", "FP32", [2, 3]), ("INPUT__1", "FP32", [2, 3])],
            [("OUTPUT__1", "FP32", [2, 3]), ("OUTPUT__0", "FP32", [2, 3])],
        ),
        kwargs={"bias": third},
    )
    wrong = write_exported(
        tmp_path / "wrong",
        Scaled(),
        (torch.rand(2, 2),),
        config_text([("x", "INT32", [2, 2])], [("y", "FP32", [2, 2])]),
    )
    backend = PyTorchBackend()
    try:
        async with running(plain, backend=backend) as model:
            first, second = await model.batch(
                {"a": fp32([1, 2, 3]), "b": fp32([1, 1, 1])},
                {"a": fp32([4, 5, 6], [7, 8, 9]), "b": fp32([0, 0, 0], [0, 0, 0])},
            )
            assert not isinstance(first, ConchError)
            assert not isinstance(second, ConchError)
            assert first.output("OUTPUT__1").to_numpy().tolist() == [[0, 1, 2]]
            assert second.output("OUTPUT__0").to_numpy().tolist() == [[4, 5, 6], [7, 8, 9]]
        async with running(placed, backend=backend) as model:
            ones = fp32([1, 1, 1], [1, 1, 1])
            got = await model.infer(INPUT__0=ones, INPUT__1=2 * ones, INPUT__2=4 * ones)
            assert got == {"OUTPUT__0": (7 * ones).tolist(), "OUTPUT__1": ones.tolist()}
        with pytest.raises(ConchError, match="expects datatype TYPE_INT32 for input 'x', model provides TYPE_FP32"):
            async with running(wrong, backend=backend):
                pass
    finally:
        await backend.stop()


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler to make a package")
async def test_compiled_packages(tmp_path: Path) -> None:
    directory = tmp_path / "m"
    (directory / "1").mkdir(parents=True)
    outputs = [("RESULT[1]", "FP32", [-1]), ("RESULT[0]", "FP32", [-1])]
    (directory / "config.pbtxt").write_text(
        config_text([("ARGS[1]", "FP32", [-1]), ("ARGS[0]", "FP32", [-1])], outputs, batch=8)
    )
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(
        Sums(), (torch.rand(2, 4), torch.rand(2, 4)), dynamic_shapes={"a": {0: batch}, "b": {0: batch}}
    )
    await asyncio.to_thread(
        torch._inductor.aoti_compile_and_package,
        program,
        package_path=str(directory / "1" / "model.pt2"),
        inductor_configs=QUICK,
    )
    async with running(directory) as model:
        a, b = fp32([1, 2, 3, 4], [5, 6, 7, 8]), fp32([1, 1, 1, 1], [1, 1, 1, 1])
        assert await model.infer(**{"ARGS[1]": b, "ARGS[0]": a}) == {
            "RESULT[0]": (a + b).tolist(),
            "RESULT[1]": (a - b).tolist(),
        }
        with pytest.raises(
            BackendError, match=r"input_handles\[0\]: unmatched dim value at 1, expected: 4, but got: 2"
        ):
            await model.infer(**{"ARGS[0]": a[:, :2], "ARGS[1]": b[:, :2]})
    single = config_text([("ARGS[0]", "FP32", [-1])], outputs, batch=8)
    (directory / "config.pbtxt").write_text(single)
    with pytest.raises(ModelLoadError, match="configuration expects 1 inputs, model provides 2"):
        async with running(directory):
            pass
