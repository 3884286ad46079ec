"""Ragged batches through onnxruntime, and configurations that do not fit the model."""

from pathlib import Path

import numpy as np
import pytest

from conch.base.errors import ConfigError
from conch.domain.tensor import Tensor
from tests.server.backends.driving import answers, request, started
from tests.server.backends.onnxruntime.ragged_model import CONFIG, write_ragged


def values(*numbers: float) -> Tensor:
    return Tensor.from_numpy("VALUES", np.array([numbers], np.float32))


@pytest.mark.parametrize("number", [1, 2, 5])
async def test_requests_of_all_lengths_share_a_run(tmp_path: Path, number: int) -> None:
    instance = await started(write_ragged(tmp_path / "m"))
    asked = [request(values(*range(1, length + 2)), id=str(length)) for length in range(number)]
    got = await answers(instance, *asked)
    await instance.stop()
    for length, answer in enumerate(got):
        assert answer.output("SUM").to_numpy().tolist() == [[sum(range(length + 2))]]
        assert answer.output("DOUBLED").to_numpy().tolist() == [[2.0 * number for number in range(1, length + 2)]]


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('target_name: "ENDS"', 'target_name: "END"', "batch_input 'END' of kind .* is not an input of the model"),
        (
            "data_type: TYPE_INT32",
            "data_type: TYPE_FP32",
            "batch_input 'ENDS' of kind .* is FP32, model provides INT32",
        ),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", "BATCH_ITEM_SHAPE", "has 2 dimensions, model provides"),
    ],
)
async def test_a_batch_input_that_does_not_fit_is_named(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    assert old in CONFIG
    with pytest.raises(ConfigError, match=complaint):
        await started(write_ragged(tmp_path / "m", CONFIG.replace(old, new)))


async def test_a_ragged_input_has_one_dimension(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"input 'VALUES' has allow_ragged_batch.* model provides \[7\]"):
        await started(write_ragged(tmp_path / "m", values=(7,)))
