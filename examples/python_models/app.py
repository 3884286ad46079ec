import numpy as np

import conch


@conch.model(batch=True)
def normalize(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


if __name__ == "__main__":
    conch.serve()
