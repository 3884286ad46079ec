"""Asks the models of this folder with the official client and shows their answers.

    conch serve --model-repository=examples/python_backend/models
    python examples/python_backend/client.py [--url localhost:8000]

Needs tritonclient[http] and numpy.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import tritonclient.http as triton
from numpy.typing import NDArray


def ask(client: triton.InferenceServerClient, model: str, **inputs: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """The outputs of a model by name. Raises tritonclient's InferenceServerException."""
    tensors = []
    for name, values in inputs.items():
        tensor = triton.InferInput(name, list(values.shape), triton.np_to_triton_dtype(values.dtype))
        tensors.append(tensor.set_data_from_numpy(values))
    result = client.infer(model, tensors)
    return {output["name"]: result.as_numpy(output["name"]) for output in result.get_response()["outputs"]}


def ask_all(client: triton.InferenceServerClient) -> dict[str, dict[str, NDArray[Any]]]:
    """The outputs of every model that answers once, by its name."""
    one, other = np.arange(4, dtype=np.float32), np.full(4, 10, np.float32)
    name = np.array([b"add_sub"], dtype=np.object_)
    return {
        "add_sub": ask(client, "add_sub", INPUT0=one, INPUT1=other),
        "bls_sync": ask(client, "bls_sync", MODEL_NAME=name, INPUT0=one, INPUT1=other),
        "bls_async": ask(client, "bls_async", INPUT0=one, INPUT1=other),
        "bls_decoupled": ask(client, "bls_decoupled", IN=np.arange(10, dtype=np.int32)),
    }


def main() -> None:
    """Print one line for each output."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--url", default="localhost:8000", help="host:port of the server's HTTP endpoint")
    with triton.InferenceServerClient(arguments.parse_args().url) as client:
        for model, outputs in ask_all(client).items():
            for name, values in outputs.items():
                print(f"{model} {name} {values.tolist()}")


if __name__ == "__main__":
    main()
