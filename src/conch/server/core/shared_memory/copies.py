# Compiled by mypyc in wheels.
"""Copies of large tensors in clients' shared memory, in slices, before and after the execution of a request.

Requests without such tensors are passed through. Small tensors are copied on use: see `Tensor.source` and
`InferRequest.destinations`.
"""

import logging
from collections.abc import Mapping
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from conch.base.errors import Cancelled, ConchError
from conch.domain.request import Admitted, InferRequest, InferResponse, Respond
from conch.domain.sliced_copy import MIN_SLICED_BYTES, CopyJob, SlicedCopy, SlicedWrite, copy_in_slices
from conch.domain.tensor import Destination, Tensor
from conch.server.core.served_model import ServedModel

_log: Final = logging.getLogger(__name__)


def admit(model: ServedModel, request: InferRequest, respond: Respond) -> Admitted:
    """Submit a request that has inputs in regions, or outputs that belong there.

    Raises as `ServedModel.submit`; later errors go to `respond`.
    """
    destinations = request.destinations
    held: list[object] = [tensor.source for tensor in request.inputs if tensor.source is not None]
    respond = _Holder(held, respond).respond
    traced = request.span is not None and request.span.notes_tensors
    sources = []
    for tensor in request.inputs:
        if tensor.source is None:
            continue
        if tensor.source.size < MIN_SLICED_BYTES:
            if traced:
                tensor.fetch()
        elif traced or not model.takes_sources:
            sources.append(tensor)
    if traced:
        request.destinations = None  # the trace shows what the model returned, not what the client overwrote
    if destinations is not None and any(destination.size >= MIN_SLICED_BYTES for destination in destinations.values()):
        respond = _Outputs(destinations, respond).respond
    if not sources:
        return model.submit(request, respond)
    inputs = _Inputs(model, request, respond)
    inputs.start(sources)
    return inputs


class _Holder:
    """Keeps the regions of inputs in use until a request has ended; its destinations are in use while it is."""

    __slots__ = ("_parts", "_respond")

    def __init__(self, parts: list[object], respond: Respond) -> None:
        self._parts = parts
        self._respond = respond

    def respond(self, answer: InferResponse | ConchError | None, final: bool) -> None:
        """Deliver a response; see `request.Respond`."""
        self._respond(answer, final)
        if final:
            self._parts = []


class _Inputs:
    """A request whose inputs are being copied, then the admitted request."""

    __slots__ = ("_admitted", "_job", "_model", "_request", "_respond", "_rooms")

    def __init__(self, model: ServedModel, request: InferRequest, respond: Respond) -> None:
        self._model = model
        self._request = request
        self._respond: Respond | None = respond
        self._rooms: list[tuple[Tensor, npt.NDArray[np.uint8]]] = []
        self._job: CopyJob | None = None
        self._admitted: Admitted | None = None

    def start(self, tensors: list[Tensor]) -> None:
        """Start the copy. Raises Unavailable if there is no room."""
        copies = []
        for tensor in tensors:
            source = tensor.source
            assert source is not None
            self._rooms.append((tensor, source.room()))
            copies.append(SlicedCopy(self._rooms[-1][1], source))
        self._model.enter()
        self._job = copy_in_slices(copies, self._copied)

    @property
    def cancelled(self) -> bool:
        """Whether the request has ended."""
        return self._respond is None if self._admitted is None else self._admitted.cancelled

    def cancel(self) -> None:
        """End the request because the client needs no response."""
        job, self._job = self._job, None
        if job is not None:
            job.cancel()
            self._refuse(Cancelled("request was cancelled by the client"))
            self._model.leave()
        elif self._admitted is not None:
            self._admitted.cancel()

    def _copied(self) -> None:
        job, self._job = self._job, None
        assert job is not None
        error = next((copy.error for copy in job.copies if copy.error is not None), None)
        try:
            if error is not None:
                raise error
            for tensor, room in self._rooms:
                tensor.replace_source(room.data)
            self._rooms = []
            respond = self._respond
            assert respond is not None
            self._admitted = self._model.submit(self._request, respond)
            self._respond = None
        except ConchError as refusal:
            self._refuse(refusal)
        except Exception:
            _log.exception("request to model '%s' failed unexpectedly", self._request.model_name)
            self._refuse(ConchError("internal error"))
        finally:
            self._model.leave()

    def _refuse(self, error: ConchError) -> None:
        respond, self._respond = self._respond, None
        if self._request.span is not None:
            self._request.span.settled(self._request, error)
        if respond is not None:
            respond(error, True)


class _Outputs:
    """Writes large outputs of each response to the client's regions, then delivers the response."""

    __slots__ = ("_destinations", "_respond", "_waiting")

    def __init__(self, destinations: Mapping[str, Destination], respond: Respond) -> None:
        self._destinations = destinations
        self._respond = respond
        self._waiting: list[tuple[InferResponse | ConchError | None, bool]] | None = (
            None  # behind a response that is being copied
        )

    def respond(self, answer: InferResponse | ConchError | None, final: bool) -> None:
        """Write and forward a response of the model; see `request.Respond`."""
        if self._waiting is not None:
            self._waiting.append((answer, final))
            return
        if isinstance(answer, InferResponse):
            copies = []
            outputs = []
            for tensor in answer.outputs:
                destination = self._destinations.get(tensor.name)
                if destination is not None and self._needs_copy(tensor, destination):
                    copies.append(SlicedWrite(destination, tensor.data))
                    written = destination.first(tensor.nbytes)
                    tensor = Tensor(tensor.name, tensor.datatype, tensor.shape, source=written)
                outputs.append(tensor)
            if copies:
                made = InferResponse(
                    answer.model_name, answer.model_version, outputs, id=answer.id, parameters=answer.parameters
                )
                self._waiting = []
                copy_in_slices(copies, partial(self._on_written, copies, made, final))
                return
        self._respond(answer, final)

    @staticmethod
    def _needs_copy(tensor: Tensor, destination: Destination) -> bool:
        if not MIN_SLICED_BYTES <= tensor.nbytes <= destination.size:
            return False
        return tensor.source is None or not destination.begins_with(tensor.source)

    def _on_written(self, copies: list[SlicedWrite], made: InferResponse, final: bool) -> None:
        error = next((copy.error for copy in copies if copy.error is not None), None)
        self._respond(made if error is None else error, final)
        waiting, self._waiting = self._waiting or [], None
        for response in waiting:
            self.respond(*response)
