"""Train the model and write model.joblib: python train.py"""

from pathlib import Path

import joblib
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

MODEL = Path(__file__).with_name("model.joblib")


def train() -> LogisticRegression:
    features, classes = load_iris(return_X_y=True)
    return LogisticRegression(max_iter=500).fit(features, classes)


if __name__ == "__main__":
    joblib.dump(train(), MODEL)
