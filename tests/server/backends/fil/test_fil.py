"""Trees: XGBoost's and LightGBM's own predictions are what the fil backend must answer, missing values included."""

import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import numpy.typing as npt
import pytest
import treelite
import xgboost
from sklearn.ensemble import GradientBoostingClassifier, RandomForestRegressor

from conch.base.errors import ConfigError, ModelLoadError
from conch.domain.tensor import Tensor
from conch.server.backends.fil.backend import SharedForests
from tests.server.backends.driving import answers, complete, plan, request, started

Array = npt.NDArray[Any]
OBJECTIVES = {
    "xgboost": {
        "regression": "reg:squarederror",
        "counts": "count:poisson",
        "two": "binary:logistic",
        "three": "multi:softprob",
    },
    "lightgbm": {"regression": "regression", "counts": "poisson", "two": "binary", "three": "multiclass"},
}
CLASSES = 'parameters { key: "output_class" value { string_value: "true" } } '
PROBABILITIES = CLASSES + 'parameters { key: "predict_proba" value { string_value: "true" } } '


def parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }} '


def features() -> Array:
    """Rows of five, a tenth of the values missing."""
    random = np.random.default_rng(3)
    rows = random.normal(size=(300, 5)).astype(np.float32)
    rows[random.random(rows.shape) < 0.1] = np.nan
    return rows


def labels(kind: str) -> Array:
    score = np.nan_to_num(features()) @ np.array([1, 2, -1, 0.5, 0])
    return {
        "regression": score,
        "counts": np.abs(score).round(),
        "two": (score > 0).astype(int),
        "three": np.digitize(score, [-1, 1]),
    }[kind]


def train(library: str, kind: str) -> tuple[Any, Array]:
    """Return a booster and its own predictions for the features."""
    settings = {"objective": OBJECTIVES[library][kind]} | ({"num_class": 3} if kind == "three" else {})
    if library == "xgboost":
        booster = xgboost.train({**settings, "max_depth": 4}, xgboost.DMatrix(features(), labels(kind)), 12)
        return booster, booster.predict(xgboost.DMatrix(features()))
    booster = lightgbm.train({**settings, "verbose": -1}, lightgbm.Dataset(features(), labels(kind)), 12)
    return booster, np.asarray(booster.predict(features()))


def write(directory: Path, save: Callable[[Path], object], filename: str, text: str = "") -> Path:
    (directory / "1").mkdir(parents=True)
    save(directory / "1" / filename)
    (directory / "config.pbtxt").write_text(f'backend: "fil" {text}')
    return directory


async def answer_of(directory: Path, rows: Array | None = None) -> Array:
    given = features() if rows is None else rows
    instance = await started(directory)
    (answer,) = await answers(instance, request(Tensor.from_numpy("input__0", given), batch_size=len(given)))
    await instance.stop()
    output: Array = answer.output("output__0").to_numpy()
    return output


@pytest.mark.parametrize("kind", ["regression", "counts", "two", "three"])
@pytest.mark.parametrize(
    ("library", "filename"), [("xgboost", "xgboost.json"), ("xgboost", "xgboost.ubj"), ("lightgbm", "model.txt")]
)
async def test_answers_are_those_of_the_library_that_trained(
    tmp_path: Path, library: str, filename: str, kind: str
) -> None:
    booster, expected = train(library, kind)
    directory = write(tmp_path / "m", booster.save_model, filename)
    config = await complete(directory)
    assert (config.inputs[0].dims, config.outputs[0].dims) == ((5,), (3,) if kind == "three" else (1,))
    got = await answer_of(directory)
    np.testing.assert_allclose(got, expected.reshape(got.shape), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["two", "three"])
async def test_classes_are_the_most_probable(tmp_path: Path, kind: str) -> None:
    booster, scores = train("xgboost", kind)
    got = await answer_of(write(tmp_path / "m", booster.save_model, "xgboost.json", CLASSES))
    expected = scores > 0.5 if kind == "two" else scores.argmax(axis=1)
    assert got.shape == (300, 1)
    assert (got[:, 0] == expected).all()


async def test_a_threshold_decides_between_two_classes(tmp_path: Path) -> None:
    booster, scores = train("lightgbm", "two")
    text = CLASSES + parameter("threshold", "0.6") + parameter("model_type", "lightgbm")
    got = await answer_of(write(tmp_path / "m", booster.save_model, "model.txt", text))
    assert (got[:, 0] == (scores > 0.6)).all()
    assert 0 < got.sum() < (scores > 0.5).sum()


async def test_each_of_two_classes_may_have_its_probability(tmp_path: Path) -> None:
    booster, scores = train("xgboost", "two")
    text = PROBABILITIES + 'output { name: "output__0" data_type: TYPE_FP32 dims: [ 2 ] }'
    got = await answer_of(write(tmp_path / "m", booster.save_model, "xgboost.json", text))
    np.testing.assert_allclose(got, np.stack([1 - scores, scores], axis=1), atol=1e-6)


async def test_lightgbm_may_be_asked_in_double_precision(tmp_path: Path) -> None:
    booster, expected = train("lightgbm", "regression")
    kind = "data_type: TYPE_FP64 dims"
    text = f'max_batch_size: 512 input {{ name: "input__0" {kind}: 5 }} output {{ name: "output__0" {kind}: 1 }}'
    got = await answer_of(write(tmp_path / "m", booster.save_model, "model.txt", text), features().astype(np.float64))
    assert (got[:, 0] == expected).all()


@pytest.mark.parametrize("model", [RandomForestRegressor(8), GradientBoostingClassifier(n_estimators=8)])
async def test_scikit_learn_comes_as_a_checkpoint(tmp_path: Path, model: Any) -> None:
    rows = np.nan_to_num(features())
    classifies = hasattr(model, "predict_proba")
    model.fit(rows, labels("two" if classifies else "regression"))
    expected = model.predict_proba(rows)[:, 1] if classifies else model.predict(rows)
    directory = write(tmp_path / "m", treelite.sklearn.import_model(model).serialize, "checkpoint.tl")
    np.testing.assert_allclose((await answer_of(directory, rows))[:, 0], expected, rtol=1e-4)


async def test_requests_are_joined(tmp_path: Path) -> None:
    booster, expected = train("xgboost", "regression")
    instance = await started(write(tmp_path / "m", booster.save_model, "xgboost.json"))
    asked = [request(Tensor.from_numpy("input__0", row)) for row in np.split(features()[:4], 4)]
    got = await answers(instance, *asked)
    await instance.stop()
    np.testing.assert_allclose([answer.outputs[0].to_numpy()[0, 0] for answer in got], expected[:4], rtol=1e-5)


async def test_instances_share_the_forest_of_the_same_file(tmp_path: Path) -> None:
    directory = write(tmp_path / "m", train("xgboost", "regression")[0].save_model, "xgboost.json")
    source = plan(directory, await complete(directory)).source
    forests = SharedForests()
    first, second = (forests.forest(source, name) for name in ("m_0", "m_1"))
    assert first is second
    (directory / "1/xgboost.json").unlink()
    train("xgboost", "three")[0].save_model(directory / "1/xgboost.json")
    changed = forests.forest(source, "m_0")
    assert (first.classes, changed.classes) == (1, 3)


@pytest.mark.parametrize("filename", ["xgboost.json", "xgboost.ubj", "model.txt", "checkpoint.tl"])
async def test_a_file_that_was_cut_short_is_refused(tmp_path: Path, filename: str) -> None:
    booster, _ = train("lightgbm" if filename == "model.txt" else "xgboost", "two")
    save = treelite.frontend.from_xgboost(booster).serialize if filename == "checkpoint.tl" else booster.save_model
    directory = write(tmp_path / "m", save, filename)
    file = directory / "1" / filename
    file.write_bytes(file.read_bytes()[: file.stat().st_size * 2 // 3])
    with pytest.raises(
        ModelLoadError, match=rf"^treelite error: .*/m/1/{filename}', read as .* for model instance 'm'"
    ):
        await complete(directory)


@pytest.mark.parametrize("name", ["model.pkl", "forest.joblib"])
@pytest.mark.parametrize("named", [False, True])
async def test_a_pickle_is_refused_with_the_cure(tmp_path: Path, name: str, named: bool) -> None:
    text = f'default_model_filename: "{name}"' if named else ""
    directory = write(tmp_path / "m", lambda path: path.write_bytes(pickle.dumps(print)), name, text)
    with pytest.raises(
        ModelLoadError,
        match=rf"1/{name}' is a pickle, which is not loaded .*\('checkpoint\.tl'",
    ):
        await complete(directory)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (parameter("model_type", "catboost"), "must be one of xgboost, xgboost_json, .*; got 'catboost'"),
        (parameter("output_class", "maybe"), "parameter 'output_class' must be one of 1, true, 0, false; got 'maybe'"),
        (CLASSES + parameter("threshold", "high"), "parameter 'threshold' must be a number, got 'high'"),
        (parameter("threshold", "0.3"), "parameter 'threshold' is for binary classifiers, with output_class: true"),
        ('input { name: "input__0" data_type: TYPE_FP32 dims: 6 }', "model expects shape .*5.* specifies .*6"),
        ('input { name: "X" data_type: TYPE_FP32 dims: 5 }', "unexpected inference input 'X', allowed .*input__0"),
    ],
)
async def test_what_is_wrong_is_named(tmp_path: Path, text: str, said: str) -> None:
    booster, _ = train("xgboost", "two")
    with pytest.raises(ConfigError, match=said):
        await started(write(tmp_path / "m", booster.save_model, "xgboost.json", f"max_batch_size: 4 {text}"))


async def test_a_row_that_is_too_short_is_not_read_beyond_its_end(tmp_path: Path) -> None:
    booster, _ = train("xgboost", "two")
    text = 'max_batch_size: 4 input { name: "input__0" data_type: TYPE_FP32 dims: -1 }'
    instance = await started(write(tmp_path / "m", booster.save_model, "xgboost.json", text))
    (answer,) = await answers(instance, request(Tensor.from_numpy("input__0", features()[:1, :3])))
    await instance.stop()
    assert answer.message == "input 'input__0' has shape [1, 3], the model requires [rows, 5]"


async def test_parameters_for_gpus_have_a_notice(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="conch")
    booster, _ = train("xgboost", "two")
    await answer_of(write(tmp_path / "m", booster.save_model, "xgboost.json", parameter("storage_type", "SPARSE")))
    assert "parameter 'storage_type' of model 'm' has no effect on the CPU" in caplog.text
    assert "12 trees" in caplog.text
