"""When two requests are the same: when the model that answers them cannot tell them apart.

Triton compares the bytes of the inputs alone, so that [2, 3] gets the answer for [3, 2], and who asks for one output
those of another. Here everything counts that can change an answer: name, datatype, shape and bytes of each input, the
outputs asked for, parameters and the sequence. What only says when and to whom to answer does not: id, priority and
time-out. Inputs and parameters may come in any order.
"""

from marshal import dumps

from blake3 import blake3

from conch.request import InferRequest
from conch.tensor import Tensor

# The last without references: equal values are written alike, whether or not they are one object.
_MARSHAL_VERSION = 2


def cache_key(model: bytes, request: InferRequest) -> bytes:
    """Return what the request has in common with those that are the same, for the model that `model` stands for.

    A cryptographic digest: nobody can make a request that gets the answer to another's. BLAKE3 reads some 6 GB/s on one
    core, three times as much as SHA-256 with instructions of its own, and half of a hit's time for an image was that.
    """
    inputs = request.inputs if len(request.inputs) < 2 else sorted(request.inputs, key=_name)
    forms = [(tensor.name, tensor.datatype, tensor.shape, tensor.nbytes) for tensor in inputs]
    parameters = sorted(request.parameters.items()) if request.parameters else None
    # Other than with `==`, true is not 1 and 1 is not 1.0; the length before it lets nothing run into the data.
    head = dumps((forms, request.outputs, parameters, request.correlation_id, request.flags), _MARSHAL_VERSION)
    digest = blake3(b"%b%d:%b" % (model, len(head), head))
    for tensor in inputs:
        digest.update(tensor.data)
    return digest.digest()


def _name(tensor: Tensor) -> str:
    return tensor.name
