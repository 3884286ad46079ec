"""An image pipeline: preprocess, predict, postprocess. `python app.py` serves it on http://localhost:8000."""

from typing import TypedDict

import numpy as np

import conch

COLOURS = ("red", "green", "blue")


class Result(TypedDict):
    colour: str
    share: float


@conch.model(name="my_model", batch=True, max_batch_size=16, batch_delay_us=1000)
class MyModel:
    def setup(self) -> None:
        """Load weights here: it runs once in each process of the model."""

    def preprocess(self, image: conch.Image) -> np.ndarray:
        """Called for each image of a request, which is a JPEG or PNG file: returns an item of the batch."""
        return image.reshape(-1, 3).mean(0, dtype=np.float32)

    def predict(self, items: list[np.ndarray]) -> np.ndarray:
        """Called with the items of several requests at once."""
        batch = np.stack(items)
        return batch / np.maximum(batch.sum(1, keepdims=True), 1)

    def postprocess(self, shares: np.ndarray) -> Result:
        """Called for each item of the result."""
        return {"colour": COLOURS[int(shares.argmax())], "share": float(shares.max())}


if __name__ == "__main__":
    conch.serve()
