"""A PyTorch model: `python app.py` serves it on http://localhost:8000."""

from pathlib import Path
from typing import Annotated

import numpy as np
import torch

import conch

WEIGHTS = Path(__file__).with_name("weights.pt")  # written by torch.save(network.state_dict(), "weights.pt")


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).softmax(-1)


@conch.model(name="my_model", batch=True, max_batch_size=64)
class MyModel:
    def setup(self, device: str) -> None:
        self.device = device
        self.network = Network().to(device).eval()
        if WEIGHTS.exists():
            self.network.load_state_dict(torch.load(WEIGHTS, map_location=device, weights_only=True))

    def predict(
        self, x: Annotated[np.ndarray, conch.Tensor("FP32", [4])]
    ) -> Annotated[np.ndarray, conch.Tensor("FP32", [3])]:
        with torch.inference_mode():
            return self.network(torch.from_numpy(x).to(self.device)).cpu().numpy()


if __name__ == "__main__":
    conch.serve()
