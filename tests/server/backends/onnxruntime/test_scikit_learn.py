"""scikit-learn, XGBoost and LightGBM models in their ONNX form."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from skl2onnx import to_onnx
from sklearn.linear_model import LogisticRegression

from conch.base.errors import ConfigError
from conch.domain.tensor import Tensor
from tests.server.backends.driving import answers, complete, request, started

DECLARED = (
    'max_batch_size: 8 input { name: "X" data_type: TYPE_FP32 dims: 4 } '
    'output { name: "output_probability" data_type: TYPE_FP32 dims: 2 }'
)
ROWS = np.random.default_rng(5).normal(size=(60, 4)).astype(np.float32)


def write(directory: Path, *, zipmap: bool, text: str = "") -> Any:
    model = LogisticRegression().fit(ROWS, (ROWS @ [1, 2, 3, 4] > 0).astype(int))
    (directory / "1").mkdir(parents=True)
    form = to_onnx(model, ROWS[:1], options={"zipmap": zipmap}, target_opset=17)
    (directory / "1" / "model.onnx").write_bytes(form.SerializeToString())
    (directory / "config.pbtxt").write_text(f'backend: "onnxruntime" {text}')
    return model


async def test_a_classifier_answers_labels_and_probabilities(tmp_path: Path) -> None:
    model = write(tmp_path / "m", zipmap=False)
    instance = await started(tmp_path / "m")
    (answer,) = await answers(instance, request(Tensor.from_numpy("X", ROWS), batch_size=len(ROWS)))
    await instance.stop()
    assert (answer.output("label").to_numpy().reshape(-1) == model.predict(ROWS)).all()
    np.testing.assert_allclose(answer.output("probabilities").to_numpy(), model.predict_proba(ROWS), rtol=1e-4)


@pytest.mark.parametrize("text", ["", DECLARED])
async def test_a_zip_map_is_refused_with_the_cure(tmp_path: Path, text: str) -> None:
    write(tmp_path / "m", zipmap=True, text=text)
    with pytest.raises(ConfigError) as raised:
        await started(tmp_path / "m")
    assert (
        "output 'output_probability' is seq(map(int64,tensor(float))), which cannot be sent as a tensor; it is the "
        in (raised.value.message)
    )
    assert "convert the model with skl2onnx's options={'zipmap': False}" in raised.value.message


async def test_what_else_a_model_with_a_zip_map_gives_can_be_served(tmp_path: Path) -> None:
    text = (
        'max_batch_size: 64 input { name: "X" data_type: TYPE_FP32 dims: 4 } '
        'output { name: "output_label" data_type: TYPE_INT64 dims: 1 reshape { } }'
    )
    model = write(tmp_path / "m", zipmap=True, text=text)
    config = await complete(tmp_path / "m")
    assert [spec.name for spec in config.outputs] == ["output_label"]
    instance = await started(tmp_path / "m")
    (answer,) = await answers(instance, request(Tensor.from_numpy("X", ROWS), batch_size=len(ROWS)))
    await instance.stop()
    assert (answer.outputs[0].to_numpy().reshape(-1) == model.predict(ROWS)).all()
