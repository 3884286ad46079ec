"""Asks the models of this folder with the official client and shows their answers.

    conch serve --model-repository=examples/python_backend/models
    python examples/python_backend/client.py [--host localhost]

Needs tritonclient[http,grpc] and numpy.
"""

from __future__ import annotations

import argparse
import urllib.request
from collections.abc import Iterator
from queue import Queue
from types import ModuleType
from typing import Any

import numpy as np
import tritonclient.grpc as grpc
import tritonclient.http as http
from numpy.typing import NDArray

Tensors = dict[str, NDArray[Any]]


def ask(client: http.InferenceServerClient, model: str, **inputs: NDArray[Any]) -> Tensors:
    """The outputs of a model by name. Raises tritonclient's InferenceServerException."""
    return outputs_of(client.infer(model, tensors(http, inputs)))


def ask_in_sequence(client: http.InferenceServerClient, model: str, sequence: int, values: list[int]) -> list[int]:
    """The totals of a model that remembers, which gets one value after the other. `sequence` is the id, not 0."""
    totals = []
    for number, value in enumerate(values, start=1):
        result = client.infer(
            model,
            tensors(http, {"IN": np.array([[value]], np.int32)}),
            sequence_id=sequence,
            sequence_start=number == 1,
            sequence_end=number == len(values),
        )
        totals.append(result.as_numpy("TOTAL").item())
    return totals


def ask_for_many(client: grpc.InferenceServerClient, model: str, **inputs: NDArray[Any]) -> Iterator[Tensors]:
    """The responses of a decoupled model as they come. Raises tritonclient's InferenceServerException."""
    responses: Queue[tuple[grpc.InferResult | None, Exception | None]] = Queue()
    client.start_stream(lambda result, error: responses.put((result, error)))
    try:
        client.async_stream_infer(model, tensors(grpc, inputs), enable_empty_final_response=True)
        while True:
            result, error = responses.get()
            if result is None:
                raise error or RuntimeError("neither a response nor an error")
            response = result.get_response()
            if response.outputs:
                yield outputs_of(result)
            if response.parameters["triton_final_response"].bool_param:
                return
    finally:
        client.stop_stream()


def tensors(protocol: ModuleType, inputs: Tensors) -> list[Any]:
    """Arrays as the inputs of `tritonclient.http` or `tritonclient.grpc`."""
    made = []
    for name, values in inputs.items():
        tensor = protocol.InferInput(name, list(values.shape), http.np_to_triton_dtype(values.dtype))
        tensor.set_data_from_numpy(values)
        made.append(tensor)
    return made


def outputs_of(result: http.InferResult | grpc.InferResult) -> Tensors:
    """All arrays of a response by name."""
    response = result.get_response()
    outputs = response["outputs"] if isinstance(response, dict) else response.outputs
    names = [output["name"] if isinstance(output, dict) else output.name for output in outputs]
    return {name: result.as_numpy(name) for name in names}


def ask_all(client: http.InferenceServerClient) -> dict[str, Tensors]:
    """The outputs of every model that answers once and has no memory, by its name."""
    input0, input1 = np.arange(4, dtype=np.float32), np.full(4, 10, np.float32)
    name = np.array([b"add_sub"], dtype=np.object_)
    return {
        "add_sub": ask(client, "add_sub", INPUT0=input0, INPUT1=input1),
        "auto_complete": ask(client, "auto_complete", INPUT0=input0[np.newaxis], INPUT1=input1[np.newaxis]),
        "bls_sync": ask(client, "bls_sync", MODEL_NAME=name, INPUT0=input0, INPUT1=input1),
        "bls_async": ask(client, "bls_async", INPUT0=input0, INPUT1=input1),
        "bls_decoupled": ask(client, "bls_decoupled", IN=np.arange(10, dtype=np.int32)),
        "custom_metrics": ask(client, "custom_metrics", IN=input0),
    }


def own_metrics(url: str) -> list[str]:
    """The lines of a metrics page that the model `custom_metrics` has put there."""
    with urllib.request.urlopen(url, timeout=10) as page:
        return [line for line in page.read().decode().splitlines() if line.startswith("example_")]


def main() -> None:
    """Print one line for each output."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--host", default="localhost", help="where the server's default ports are")
    host = arguments.parse_args().host
    with http.InferenceServerClient(f"{host}:8000") as client:
        for model, outputs in ask_all(client).items():
            for name, values in outputs.items():
                print(f"{model} {name} {values.tolist()}")
        print(f"accumulate TOTAL {ask_in_sequence(client, 'accumulate', 42, [1, 2, 3])}")
    with grpc.InferenceServerClient(f"{host}:8001") as client:
        for model, count in {"repeat": np.arange(3, dtype=np.int32), "square": np.array([3], np.int32)}.items():
            print(f"{model} OUT {[response['OUT'].item() for response in ask_for_many(client, model, IN=count)]}")
    print(*own_metrics(f"http://{host}:8002/metrics"), sep="\n")


if __name__ == "__main__":
    main()
