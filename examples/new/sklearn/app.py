"""A scikit-learn model: `python app.py` serves it on http://localhost:8000."""

from typing import Annotated, TypedDict

import joblib
import numpy as np
from numpy.typing import NDArray
from train import MODEL, train

import conch


class Prediction(TypedDict):
    label: list[int]
    probabilities: Annotated[NDArray[np.float32], conch.Tensor("FP32", [3])]


@conch.model(name="my_model", batch=True, max_batch_size=256)
class MyModel:
    def setup(self) -> None:
        # A joblib file is a pickle, which can run any code: load only your own.
        self.model = joblib.load(MODEL) if MODEL.exists() else train()

    def predict(self, features: Annotated[np.ndarray, conch.Tensor("FP32", [4])]) -> Prediction:
        probabilities = self.model.predict_proba(features)
        return {"label": self.model.classes_[probabilities.argmax(1)], "probabilities": probabilities}


if __name__ == "__main__":
    conch.serve()
