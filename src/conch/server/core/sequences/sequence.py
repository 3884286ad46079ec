# Compiled by mypyc in wheels.
"""A sequence of requests, and a request that belongs to one."""

from collections import deque
from typing import NamedTuple, Protocol, TypeAlias

from conch.base.errors import ConchError
from conch.domain.request import InferRequest, InferResponse, Respond
from conch.domain.tensor import Tensor
from conch.server.core.pending import Owner, Pending, State

# The client's id; for requests to iterative models a tuple, which no client can send.
Key: TypeAlias = int | str | tuple[int]


class Slot(NamedTuple):
    """A slot of an instance. Low numbers are taken first, so that sequences spread over the instances."""

    number: int
    instance: int


class LiveSequence:
    """One sequence, from a request with START to its end, with END or otherwise."""

    __slots__ = ("begun", "executing", "expires", "idle_since", "key", "open", "slot", "states", "waiting")

    def __init__(self, key: Key) -> None:
        self.key = key
        self.slot: Slot | None = None
        self.waiting: deque[SequenceRequest] = deque()
        self.executing: SequenceRequest | None = None
        self.open = True  # more requests may come: it has not ended, with END or otherwise
        self.begun = False  # an instance has executed one of its requests
        self.idle_since = 0  # when it became idle, monotonic ns
        self.expires = 0  # deadline of its wait for a slot, monotonic ns; 0: none
        self.states: list[Tensor] = []  # implicit state: inputs of its next request

    def __repr__(self) -> str:
        return f"<LiveSequence {self.key!r} {self.slot} {len(self.waiting)} waiting>"


class SequenceOwner(Owner, Protocol):
    """The model that admitted the request."""

    def responded(self, pending: "SequenceRequest", response: InferResponse) -> ConchError | None:
        """Remove the state from a response and store it; return an error if it is invalid."""

    def rescheduled(self, pending: "SequenceRequest") -> None:
        """Queue the request again."""


class SequenceRequest(Pending):
    """An admitted request of a sequence. `request` is what the instance gets; `inputs` and `outputs` the client's."""

    __slots__ = ("_sequences", "again", "inputs", "outputs", "prepared", "released", "sequence")

    def __init__(self, request: InferRequest, respond: Respond, owner: SequenceOwner, sequence: LiveSequence) -> None:
        super().__init__(request, respond, owner)
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
