# Compiled by mypyc in wheels.
"""Requests against the model's configuration: validation, in Triton's order and words, and `reshape`.

The order decides which of two mistakes is reported: output names, number of inputs, batch size, datatype, shape, byte
size (`infer_request.cc`, `Normalize` and what follows).

`reshape`: clients use `dims`, the backend another shape of the same elements. Variable dimensions keep their order: the
n-th -1 of one side is the n-th -1 of the other (model configuration, "Reshape").
"""

import struct
from collections.abc import Iterable, Sequence
from math import prod
from typing import Final

from conch.base.errors import InvalidRequest, request_prefix
from conch.domain.model_config import ModelConfig, TensorSpec
from conch.domain.request import InferRequest, InferResponse
from conch.domain.tensor import BYTES, ITEM_SIZES, Tensor

_BATCH_NOTE: Final = (
    " NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each"
    " input shape. If you want to specify the full shape including the batch dim in your input dims config, try"
    " setting max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)
_LENGTH: Final = struct.Struct("<I")
# BYTES elements in one request of a client: each costs the event loop up to 0.4 µs, and backends more.
MAX_STRING_ELEMENTS: Final = 2**17
# Accepted forms that are cached: enough for the batch sizes of a model. Further ones are checked each time.
_MAX_ACCEPTED_FORMS: Final = 256
_MAX_NAMES: Final = 20  # in an error


class RequestValidator:
    """The checks of one model; what depends on the configuration only is computed once."""

    def __init__(self, config: ModelConfig) -> None:
        self._model = config.name
        self._max_batch_size = config.max_batch_size
        self._batch_origin = f" ({config.batch_origin})" if config.batch_origin else ""
        self._inputs = {spec.name: spec for spec in config.inputs}
        self._outputs = {spec.name for spec in config.outputs}
        self._takes_strings = any(spec.datatype == BYTES for spec in config.inputs)
        self._accepted: dict[tuple[object, ...], int] = {}
        self._required = {spec.name for spec in config.inputs if not spec.optional}

    def check(self, request: InferRequest) -> None:
        """Validate a request and set its `batch_size`. Raises InvalidRequest."""
        # Clients repeat the form of their requests: one that was accepted needs only the checks of its data.
        form = (request.outputs, *[(tensor.name, tensor.datatype, tensor.shape) for tensor in request.inputs])
        batch_size = self._accepted.get(form)
        if batch_size is None:
            self._check_form(request)
            if len(self._accepted) < _MAX_ACCEPTED_FORMS:
                self._accepted[form] = request.batch_size
        else:
            request.batch_size = batch_size
        if self._takes_strings:
            self._check_string_count(request)
        for tensor in reversed(request.inputs):
            self._check_size(request, tensor)

    def _check_form(self, request: InferRequest) -> None:
        """Check everything but the data."""
        inputs = request.inputs
        given = {tensor.name for tensor in inputs}
        if len(given) != len(inputs):
            names = [tensor.name for tensor in inputs]
            twice = next(name for index, name in enumerate(names) if name in names[:index])
            raise _refused(request, f"input '{twice}' already exists in request")
        for name in request.outputs:
            if name not in self._outputs:
                raise InvalidRequest(
                    f"unexpected inference output '{name}' for model '{self._model}'; "
                    f"its outputs are {_first_names(self._outputs)}"
                )
        if given != self._required:
            self._check_names(request, given)
        # Triton iterates over inputs from the last to the first, and so names the last wrong one.
        if self._max_batch_size > 0:
            request.batch_size = self._check_batch(request)
        for tensor in reversed(inputs):
            spec = self._inputs[tensor.name]
            if tensor.datatype != spec.datatype:
                raise _refused(
                    request,
                    f"inference input '{tensor.name}' data-type is '{tensor.datatype}', "
                    f"but model '{self._model}' expects '{spec.datatype}'",
                )
            self._check_shape(request, tensor, spec)
        if self._max_batch_size > 0:
            for tensor in reversed(inputs):
                if tensor.shape[0] == 0:
                    self._refuse_empty_batch(request, tensor)

    def _check_names(self, request: InferRequest, given: set[str]) -> None:
        least, most = len(self._required), len(self._inputs)
        names = [tensor.name for tensor in reversed(request.inputs)]
        unknown = [name for name in names if name not in self._inputs]
        if unknown and least <= len(given) <= most:
            raise InvalidRequest(
                f"unexpected inference input '{unknown[0]}' for model '{self._model}'; "
                f"its inputs are {_first_names(self._inputs)}"
            )
        missing = sorted(self._required - given)
        if missing or unknown:
            expected = f"{most} inputs" if least == most else f"number of inputs between {least} and {most}"
            surplus = f" There is no input {_names(unknown)} in the model." if unknown else ""
            raise _refused(
                request,
                f"expected {expected} but got {len(given)} inputs for model '{self._model}'. "
                f"Got input(s) {_names(names)}, but missing required input(s) {_names(missing)}. "
                f"Please provide all required input(s).{surplus}",
            )

    def _check_batch(self, request: InferRequest) -> int:
        batch_size = 0
        for tensor in reversed(request.inputs):
            shape = tensor.shape
            if len(shape) == 0:
                raise _refused(
                    request,
                    f"input '{tensor.name}' has no shape but model requires batch dimension for '{self._model}'",
                )
            if batch_size == 0:
                batch_size = shape[0]
            elif shape[0] != batch_size:
                raise _refused(
                    request,
                    f"input '{tensor.name}' batch size does not match other inputs for '{self._model}': "
                    f"its shape is {_shape(shape)}, the batch size of the others is {batch_size}",
                )
        if batch_size > self._max_batch_size:
            self._refuse_batch(request)
        return max(batch_size, 1)

    def _refuse_empty_batch(self, request: InferRequest, tensor: Tensor) -> None:
        count = prod(tensor.shape[1:]) * request.batch_size
        why = "its batch dimension is 0, a batch needs at least one item"
        if tensor.datatype == BYTES:
            raise _refused(
                request,
                f"expected {count} string elements for inference input '{tensor.name}' for model '{self._model}', "
                f"got 0: {why}",
            )
        raise _refused(
            request,
            f"input byte size mismatch for input '{tensor.name}' for model '{self._model}'. "
            f"Expected {count * ITEM_SIZES[tensor.datatype]}, got 0: {why}",
        )

    def _refuse_batch(self, request: InferRequest) -> None:
        hint = ""
        for tensor in request.inputs:
            spec = self._inputs[tensor.name]
            # Without the batch dimension the shape would fit: the likelier mistake.
            if len(tensor.shape) == len(spec.dims):
                hint = (
                    f"; the shape of input '{tensor.name}' is {_shape(tensor.shape)}, expected "
                    f"{_shape((-1, *spec.dims))}.{_BATCH_NOTE}"
                )
                break
        raise _refused(
            request,
            f"inference request batch-size must be <= {self._max_batch_size} for '{self._model}'"
            f"{self._batch_origin}{hint}",
        )

    def _check_shape(self, request: InferRequest, tensor: Tensor, spec: TensorSpec) -> None:
        shape = tensor.shape[1:] if self._max_batch_size > 0 else tensor.shape
        dims = spec.dims
        if shape == dims:
            return
        if len(shape) != len(dims) or any(want not in (-1, got) for want, got in zip(dims, shape, strict=True)):
            raise self._wrong_shape(request, tensor, spec)

    def _wrong_shape(self, request: InferRequest, tensor: Tensor, spec: TensorSpec) -> InvalidRequest:
        batching = self._max_batch_size > 0
        expected = (-1, *spec.dims) if batching else spec.dims
        return _refused(
            request,
            f"unexpected shape for input '{tensor.name}' for model '{self._model}'. "
            f"Expected {_shape(expected)}, got {_shape(tensor.shape)}.{_BATCH_NOTE if batching else ' '}",
        )

    def _check_size(self, request: InferRequest, tensor: Tensor) -> None:
        if tensor.datatype == BYTES:
            self._check_elements(request, tensor)
            return
        expected = prod(tensor.shape) * ITEM_SIZES[tensor.datatype]
        got = tensor.nbytes
        if got != expected:
            raise _refused(
                request,
                f"input byte size mismatch for input '{tensor.name}' for model '{self._model}'. "
                f"Expected {expected}, got {got}",
            )

    def _check_string_count(self, request: InferRequest) -> None:
        """Bound the BYTES elements of a client's request; calls of models and steps of ensembles are not bounded."""
        if request.admitted or request.caller is not None:
            return
        count = 0
        for tensor in request.inputs:
            if tensor.datatype == BYTES:
                count += prod(tensor.shape)
        if count > MAX_STRING_ELEMENTS:
            text = f"a request may have at most {MAX_STRING_ELEMENTS} BYTES elements for model '{self._model}'"
            raise _refused(request, f"{text}, got {count}")

    def _check_elements(self, request: InferRequest, tensor: Tensor) -> None:
        view = memoryview(tensor.data)
        expected, count, position, end = prod(tensor.shape), 0, 0, len(view)
        while position < end:
            if position + 4 > end:
                raise _refused(
                    request,
                    f"incomplete string length indicator {self._where(tensor)}, expecting 4 bytes but only "
                    f"{end - position} bytes available. Please make sure the string length indicator is in one buffer.",
                )
            if count == expected:
                raise _refused(
                    request,
                    f"unexpected number of string elements {count + 1} {self._where(tensor)}, expecting {expected}",
                )
            (length,) = _LENGTH.unpack_from(view, position)
            position += 4
            if position + length > end:
                text = (
                    f"incomplete string data for inference input '{tensor.name}', expecting string of length {length} "
                    f"but only {end - position} bytes available"
                )
                if count + 1 != expected:
                    text = f"expected {expected} string elements {self._where(tensor)}, got {count + 1}: {text}"
                    raise _refused(request, text)
                raise InvalidRequest(text)  # in Triton by backends, which name neither the request nor the model
            position += length
            count += 1
        if count != expected:
            raise _refused(request, f"expected {expected} string elements {self._where(tensor)}, got {count}")

    def _where(self, tensor: Tensor) -> str:
        return f"for inference input '{tensor.name}' for model '{self._model}'"


def _refused(request: InferRequest, text: str) -> InvalidRequest:
    return InvalidRequest(request_prefix(request.id) + text)


def _first_names(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - _MAX_NAMES} others" if len(ordered) > _MAX_NAMES else ""
    return _names(ordered[:_MAX_NAMES]) + more


def _names(names: list[str]) -> str:
    return "[" + ",".join(f"'{name}'" for name in names) + "]"


def _shape(shape: tuple[int, ...]) -> str:
    return "[" + ",".join(map(str, shape)) + "]"


class Reshaper:
    """The reshapes of one model; `needed` is False for a model without any."""

    def __init__(self, config: ModelConfig) -> None:
        self._leading = 1 if config.max_batch_size > 0 else 0
        self._inputs = {spec.name: spec for spec in config.inputs if spec.reshape is not None}
        self._outputs = {spec.name: spec for spec in config.outputs if spec.reshape is not None}
        self.needed = bool(self._inputs or self._outputs)

    def request(self, request: InferRequest) -> None:
        """Give the inputs the shapes of the backend. The request has been validated."""
        request.inputs = [
            self._apply(tensor, self._inputs.get(tensor.name), to_backend=True) for tensor in request.inputs
        ]

    def response(self, response: InferResponse) -> None:
        """Give the outputs the shapes of the client."""
        response.outputs = [
            self._apply(tensor, self._outputs.get(tensor.name), to_backend=False) for tensor in response.outputs
        ]

    def _apply(self, tensor: Tensor, spec: TensorSpec | None, *, to_backend: bool) -> Tensor:
        if spec is None or spec.reshape is None:
            return tensor
        old, new = (spec.dims, spec.reshape) if to_backend else (spec.reshape, spec.dims)
        batch, shape = tensor.shape[: self._leading], tensor.shape[self._leading :]
        if not to_backend and not fits(shape, old):  # not what the model declares
            return tensor
        return tensor.reshaped((*batch, *_mapped(shape, old, new)))


def fits(shape: Sequence[int], dims: Sequence[int]) -> bool:
    """Return whether a shape is one of those that dims allow, where -1 is any size."""
    return len(shape) == len(dims) and all(dim in (-1, size) for size, dim in zip(shape, dims, strict=True))


def _mapped(shape: Sequence[int], old: Sequence[int], new: Sequence[int]) -> tuple[int, ...]:
    variable = iter([size for size, dim in zip(shape, old, strict=False) if dim == -1])
    return tuple(next(variable, 1) if dim == -1 else dim for dim in new)
