"""Warm-up: samples, batches, all sources of data, and failures."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conch.base.errors import Code, ModelLoadError
from conch.domain.model_config import ModelConfig, TensorSpec, Warmup, WarmupTensor
from conch.domain.tensor import BYTES, DATATYPES, Tensor
from conch.server.backends.batch import Batch
from conch.server.core.scheduling.warmup import warm_up
from conch.server.core.sequences.tensors import instance_config
from tests.unit.server.core.scripted import ScriptedInstance, config
from tests.unit.server.core.sequence_models import sequences


class Recorder(ScriptedInstance):
    """Answers at once and records the batches; a `broken` one fails them."""

    def __init__(self, model_config: ModelConfig, directory: Path) -> None:
        super().__init__()
        self.plan = replace(self.plan, source=replace(self.plan.source, config=model_config, directory=directory))
        self.seen: list[list[list[Tensor]]] = []
        self.broken = False

    def execute(self, batch: Batch) -> None:
        self.seen.append([execution.request.inputs for execution in batch.executions])
        self.batches.append(batch)
        (self.fail if self.broken else self.answer)()


async def warmed(
    directory: Path,
    *tensors: WarmupTensor,
    spec: TensorSpec | None = None,
    max_batch_size: int = 0,
    batch_size: int = 1,
    count: int = 1,
) -> list[list[list[Tensor]]]:
    """The inputs of each request of each batch."""
    inputs = (spec or TensorSpec("IN", tensors[0].datatype, (-1,)),)
    model_config = config(
        max_batch_size=max_batch_size, inputs=inputs, warmups=(Warmup("sample", batch_size, count, tensors),)
    )
    recorder = Recorder(model_config, directory)
    await recorder.start()
    await warm_up(recorder)
    return recorder.seen


@pytest.mark.parametrize("random", [False, True])
@pytest.mark.parametrize("datatype", sorted(DATATYPES))
async def test_data_of_every_datatype_is_generated(tmp_path: Path, datatype: str, random: bool) -> None:
    [[[tensor]]] = await warmed(tmp_path, WarmupTensor("IN", datatype, (64,), random=random))
    assert (tensor.datatype, tensor.shape) == (datatype, (64,))
    data = bytes(tensor.data)
    # Random text is none, as in Triton.
    assert (data.strip(b"\0") != b"") == (random and datatype != BYTES)
    if datatype == "BOOL":
        assert set(data) <= {0, 1}


async def test_data_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "random").write_bytes(np.array([1.5, 2.5, 3.5], np.float32).tobytes())
    [[[tensor]]] = await warmed(tmp_path, WarmupTensor("IN", "FP32", (2,), filename="random"))
    assert tensor.to_numpy().tolist() == [1.5, 2.5]  # what it holds beside that is left alone


async def test_text_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "text").write_bytes(b"\x02\0\0\0ab\0\0\0\0")
    [[[tensor]]] = await warmed(tmp_path, WarmupTensor("IN", BYTES, (2,), filename="text"))
    assert tensor.to_numpy().tolist() == [b"ab", b""]


async def test_batch_of_n_is_n_requests_of_one_item(tmp_path: Path) -> None:
    seen = await warmed(tmp_path, WarmupTensor("IN", "INT8", (2,)), max_batch_size=4, batch_size=3, count=2)
    assert [[tensor.shape for (tensor,) in batch] for batch in seen] == [[(1, 2)] * 3] * 2


async def test_backend_gets_the_reshaped_input(tmp_path: Path) -> None:
    spec = TensorSpec("IN", "FP32", (4,), reshape=(2, 2))
    [[[tensor]]] = await warmed(tmp_path, WarmupTensor("IN", "FP32", (4,)), spec=spec)
    assert tensor.shape == (2, 2)


@pytest.mark.parametrize(
    ("tensor", "batch_size", "complaint"),
    [
        (WarmupTensor("IN", "FP32", (2,)), 2, "batch size 2 for 'm', max allowed is 1"),
        (WarmupTensor("IN", "FP32", (3,)), 1, r"unexpected shape for input 'IN' .* Expected \[2\], got \[3\]"),
        (WarmupTensor("IN", "INT32", (2,)), 1, "data-type is 'INT32', but model 'm' expects 'FP32'"),
        (WarmupTensor("NO", "FP32", (2,)), 1, "unexpected inference input 'NO'"),
        (WarmupTensor("IN", "FP32", (2,), filename="none"), 1, "failed to open the file for read .*none"),
        (WarmupTensor("IN", "FP32", (2,), filename="short"), 1, "expects 8 bytes, but the data .* only has 4"),
        (WarmupTensor("IN", "FP32", (2,), filename="../secret"), 1, "'../secret' of input 'IN' leads out of"),
    ],
)
async def test_invalid_sample_fails_the_load(
    tmp_path: Path, tensor: WarmupTensor, batch_size: int, complaint: str
) -> None:
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "short").write_bytes(b"\0" * 4)
    (tmp_path / "secret").write_bytes(b"\0" * 8)
    with pytest.raises(ModelLoadError, match=f"failed to run warmup sample 'sample': .*{complaint}"):
        await warmed(tmp_path, tensor, spec=TensorSpec("IN", "FP32", (2,)), batch_size=batch_size)


async def test_failed_sample_fails_the_load(tmp_path: Path) -> None:
    warmup = Warmup("sample", 1, 1, (WarmupTensor("IN", "FP32", (2,)),))
    recorder = Recorder(config(warmups=(warmup,)), tmp_path)
    recorder.broken = True
    await recorder.start()
    with pytest.raises(ModelLoadError, match="failed to run warmup sample 'sample': boom") as raised:
        await warm_up(recorder)
    assert raised.value.code is Code.INTERNAL


async def test_samples_of_sequences_may_omit_controls(tmp_path: Path) -> None:
    """As in Triton: the model gets what the sample has."""
    sample = Warmup("sample", 1, 1, (WarmupTensor("IN", "FP32", (2,)), WarmupTensor("END", "INT32", (1,))))
    model_config = replace(instance_config(sequences(max_batch_size=0)), warmups=(sample,))
    recorder = Recorder(model_config, tmp_path)
    await recorder.start()
    await warm_up(recorder)
    assert [tensor.name for tensor in recorder.seen[0][0]] == ["IN", "END"]
