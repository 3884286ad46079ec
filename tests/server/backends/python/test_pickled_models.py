"""Pickles of `--model-dir`, in the Python process that runs them."""

import pickle
from pathlib import Path
from typing import Any

import pytest
from sklearn.linear_model import LinearRegression

from conch.base.errors import ModelLoadError
from conch.server.backends.base import ModelSource
from conch.server.backends.python.backend import PythonBackend
from conch.server.repository.model_dir import ModelDirRoot
from conch.server.repository.store import Repository


async def completed(folder: Path) -> Any:
    """The configuration, as the process completes it."""
    root = ModelDirRoot(folder, "m", allow_pickles=True)
    files = Repository([root]).read("m")
    backend = PythonBackend()
    try:
        return await backend.complete(ModelSource(files.config, 1, files.directory, {}))
    finally:
        await backend.stop()


@pytest.mark.slow
async def test_a_regressor_has_one_output(tmp_path: Path) -> None:
    model = LinearRegression().fit([[0, 1, 2], [1, 2, 3]], [[0, 1], [1, 0]])
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(model))
    document = await completed(tmp_path)
    assert document["input"] == [{"name": "input-0", "data_type": "TYPE_FP32", "dims": [3]}]
    (output,) = document["output"]
    assert (output["name"], output["data_type"][:7], output["dims"]) == ("predict", "TYPE_FP", [2])
    assert document["max_batch_size"] > 1


@pytest.mark.parametrize(
    ("contents", "complaint"),
    [
        (pickle.dumps({"weights": [1]}), "contains a dict, which has no method predict"),
        (b"\x80\x04 damaged", "auto_complete_config of model 'm' failed"),
    ],
)
async def test_what_cannot_predict(contents: bytes, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "model.joblib").write_bytes(contents)
    with pytest.raises(ModelLoadError, match=complaint):
        await completed(tmp_path)
