"""Shapes that clients see and shapes that backends see, of the same elements."""

import numpy as np
import pytest

from conch.domain.model_config import TensorSpec
from conch.domain.request import InferRequest, InferResponse
from conch.domain.tensor import Tensor
from conch.server.core.validation import Reshaper
from tests.unit.server.core.scripted import config

Shape = tuple[int, ...]


@pytest.mark.parametrize(
    ("dims", "reshape", "max_batch_size", "client", "backend"),
    [
        ((1,), (), 8, (3, 1), (3,)),  # nothing but the batch is left
        ((6,), (2, 3), 0, (6,), (2, 3)),
        ((6,), (2, 3), 8, (4, 6), (4, 2, 3)),
        ((-1, 4), (-1, 2, 2), 0, (5, 4), (5, 2, 2)),
        ((2, -1, 6), (2, 1, -1, 2, 3), 8, (1, 2, 7, 6), (1, 2, 1, 7, 2, 3)),
        ((-1, 2, -1), (1, -1, 2, -1), 0, (3, 2, 5), (1, 3, 2, 5)),  # in their order
        ((-1, 1), (-1,), 8, (2, 0, 1), (2, 0)),  # no elements at all
        ((4,), None, 8, (2, 4), (2, 4)),
    ],
)
def test_reshape_round_trip(
    dims: Shape, reshape: Shape | None, max_batch_size: int, client: Shape, backend: Shape
) -> None:
    model = config(
        max_batch_size=max_batch_size,
        inputs=(TensorSpec("IN", "FP32", dims, reshape=reshape), TensorSpec("OTHER", "FP32", (1,))),
        outputs=(TensorSpec("OUT", "FP32", dims, reshape=reshape),),
    )
    reshaper = Reshaper(model)
    assert reshaper.needed == (reshape is not None)
    given = Tensor.from_numpy("IN", np.zeros(client, np.float32))
    request = InferRequest("m", [given, Tensor.from_numpy("OTHER", np.zeros((1, 1), np.float32))])
    reshaper.request(request)
    assert [tensor.shape for tensor in request.inputs] == [backend, (1, 1)]
    response = InferResponse("m", 1, [Tensor("OUT", "FP32", backend, given.data)])
    reshaper.response(response)
    assert response.outputs[0].shape == client
    assert given.shape == client  # the tensor itself is unchanged


@pytest.mark.parametrize("shape", [(5,), (3, 2), (2, 3, 1), ()])
def test_output_of_an_undeclared_shape_is_unchanged(shape: Shape) -> None:
    model = config(outputs=(TensorSpec("OUT", "FP32", (6,), reshape=(2, 3)),))
    response = InferResponse("m", 1, [Tensor.from_numpy("OUT", np.zeros(shape, np.float32))])
    Reshaper(model).response(response)
    assert response.outputs[0].shape == shape
