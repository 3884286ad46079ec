"""The base of Python models that run an estimator of scikit-learn, or one with its interface, from a pickle.

Input `input-0` is a row of features for each request; output `predict` is the result of `predict`, and
`predict_proba`, where the estimator has it, the probabilities of its classes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import triton_python_backend_utils as pb_utils

INPUT, PREDICT, PROBABILITIES = "input-0", "predict", "predict_proba"
_MAX_BATCH_SIZE = 1024


def _load(path: Path) -> Any:
    """Load the estimator. Raises TritonModelException without joblib, what the pickle's code raises otherwise."""
    try:
        import joblib  # type: ignore[import-untyped]
    except ImportError:
        raise pb_utils.TritonModelException(
            "'{}' needs joblib and the library that it was made with: pip install joblib scikit-learn".format(path)
        ) from None
    model = joblib.load(path)
    if not hasattr(model, "predict"):
        raise pb_utils.TritonModelException(
            "'{}' contains a {}, which has no method predict".format(path, type(model).__name__)
        )
    return model


def _datatype(values: Any) -> str:
    if values.dtype.kind in "OUS":
        return "TYPE_STRING"
    name = str(values.dtype.name)  # such as int64 or float32
    return "TYPE_" + name.upper().replace("FLOAT", "FP")


class PickledModel:
    """Runs one estimator. `path` is that of the pickle."""

    path: Path
    _loaded: Any = None  # by `auto_complete_config`, whose process may become an instance

    @classmethod
    def auto_complete_config(cls, config: Any) -> Any:
        """Describe the tensors by a prediction for zeros."""
        model = cls._loaded = _load(cls.path)
        features = getattr(model, "n_features_in_", None)
        if features is None:
            raise pb_utils.TritonModelException(
                "the {} in '{}' has no n_features_in_, so its inputs are unknown: convert it to ONNX, or write a "
                "Python model".format(type(model).__name__, cls.path)
            )
        config.set_max_batch_size(_MAX_BATCH_SIZE)
        config.set_dynamic_batching()
        config.add_input({"name": INPUT, "data_type": "TYPE_FP32", "dims": [features]})
        for name, values in _predict(model, np.zeros((1, features), np.float32)).items():
            dims = list(values.shape[1:]) or [1]
            config.add_output({"name": name, "data_type": _datatype(values), "dims": dims})
        return config

    def initialize(self, _args: Dict[str, str]) -> None:
        """Load the estimator."""
        self._model = _load(self.path) if self._loaded is None else self._loaded

    def execute(self, requests: List[Any]) -> List[Any]:
        """Predict the rows of all requests at once."""
        rows = [pb_utils.get_input_tensor_by_name(request, INPUT).as_numpy() for request in requests]
        results = _predict(self._model, np.concatenate(rows))
        ends = np.cumsum([len(row) for row in rows])[:-1]
        parts = {name: np.split(values, ends) for name, values in results.items()}
        return [
            pb_utils.InferenceResponse([_tensor(name, values[index]) for name, values in parts.items()])
            for index in range(len(requests))
        ]


def _predict(model: Any, rows: Any) -> Dict[str, Any]:
    results = {PREDICT: np.asarray(model.predict(rows))}
    if hasattr(model, PROBABILITIES):  # some estimators have it only with certain parameters
        results[PROBABILITIES] = np.asarray(model.predict_proba(rows))
    return results


def _tensor(name: str, values: Any) -> Any:
    if values.dtype.kind in "OUS":
        values = np.array([str(value).encode() for value in values.ravel()], dtype=np.object_).reshape(values.shape)
    return pb_utils.Tensor(name, values.reshape(len(values), -1))
