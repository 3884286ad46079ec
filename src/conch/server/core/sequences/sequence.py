# Compiled by mypyc in wheels.
"""A request of a sequence."""

from typing import Protocol

from conch.base.errors import ConchError
from conch.domain.request import InferRequest, InferResponse, Respond
from conch.domain.scheduling.sequence_slots import LiveSequence
from conch.domain.scheduling.waiting import State
from conch.server.core.pending import Owner, Pending
from conch.server.observability.event_log import ModelEvents


class SequenceOwner(Owner, Protocol):
    """The model that admitted the request."""

    def responded(self, pending: "SequenceRequest", response: InferResponse) -> ConchError | None:
        """Remove the state from a response and store it; return an error if it is invalid."""

    def rescheduled(self, pending: "SequenceRequest") -> None:
        """Queue the request again."""


class SequenceRequest(Pending):
    """An admitted request of a sequence. `request` is what the instance gets; `inputs` and `outputs` the client's."""

    __slots__ = ("_sequences", "again", "inputs", "outputs", "prepared", "released", "sequence")

    def __init__(
        self,
        request: InferRequest,
        respond: Respond,
        owner: SequenceOwner,
        sequence: "LiveSequence[SequenceRequest]",
        events: ModelEvents | None = None,
    ) -> None:
        super().__init__(request, respond, owner, events)
        self.sequence = sequence
        self.inputs = request.inputs
        self.outputs = request.outputs
        self.prepared = False  # whether `request` has controls and state
        self.released = False  # whether the instance has released it
        self.again = False  # whether the model has rescheduled it
        self._sequences: SequenceOwner | None = owner

    def send(self, response: InferResponse | ConchError) -> None:
        if self.state is State.DONE:
            return
        assert self._sequences is not None
        error = self._sequences.responded(self, response) if isinstance(response, InferResponse) else None
        if error is None:
            super().send(response)
        else:
            self.finish(error)

    def finish(self, answer: InferResponse | ConchError | None) -> None:
        if self.state is State.DONE:
            return
        owner, self._sequences = self._sequences, None
        if isinstance(answer, InferResponse):
            assert owner is not None
            answer = owner.responded(self, answer) or answer
        super().finish(answer)

    def reschedule(self) -> None:
        """Queue the request again, for the next turn of its sequence."""
        if self.state is State.EXECUTING:
            assert self._sequences is not None
            self._sequences.rescheduled(self)
