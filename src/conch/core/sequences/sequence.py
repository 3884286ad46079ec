"""One sequence of requests, and a request that belongs to one."""

from collections import deque
from typing import NamedTuple, Protocol, TypeAlias

from conch.core.pending import Owner, Pending, State
from conch.errors import ConchError
from conch.request import InferRequest, InferResponse, Respond
from conch.tensor import Tensor

# What tells sequences apart: the client's id. An iterative model's requests get one that no client can give.
Key: TypeAlias = int | str | tuple[int]


class Slot(NamedTuple):
    """A place at an instance. Low numbers are taken first, so that sequences spread over the instances."""

    number: int
    instance: int


class LiveSequence:
    """One sequence: from a request with START to its end, whoever brings that about."""

    __slots__ = ("begun", "executing", "expires", "key", "open", "rested", "slot", "states", "waiting")

    def __init__(self, key: Key) -> None:
        self.key = key
        self.slot: Slot | None = None
        self.waiting: deque[SequenceRequest] = deque()
        self.executing: SequenceRequest | None = None
        self.open = True  # more requests may come: neither END was seen nor was it ended
        self.begun = False  # an instance has executed a request of it
        self.rested = 0  # since when it has had nothing to do, monotonic ns
        self.expires = 0  # until when it may wait for a slot, monotonic ns; 0: for ever
        self.states: list[Tensor] = []  # implicit state, as inputs of its next request

    def __repr__(self) -> str:
        return f"<LiveSequence {self.key!r} {self.slot} {len(self.waiting)} waiting>"


class SequenceOwner(Owner, Protocol):
    """The model that admitted the request."""

    def responded(self, pending: "SequenceRequest", response: InferResponse) -> ConchError | None:
        """Take from a response what is not the client's; an error if that cannot be right."""

    def rescheduled(self, pending: "SequenceRequest") -> None:
        """Let the model have the request again."""


class SequenceRequest(Pending):
    """An admitted request of a sequence. `request` is what an instance sees; `inputs` and `outputs` the client's."""

    __slots__ = ("_sequences", "again", "dressed", "inputs", "outputs", "released", "sequence")

    def __init__(self, request: InferRequest, respond: Respond, owner: SequenceOwner, sequence: LiveSequence) -> None:
        super().__init__(request, respond, owner)
        self.sequence = sequence
        self.inputs = request.inputs
        self.outputs = request.outputs
        self.dressed = False  # whether `request` has controls and state
        self.released = False  # whether the instance that had it has finished with it
        self.again = False  # whether the model wants it once more
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
        """Settle the request. Does nothing if it is settled already."""
        if self.state is State.DONE:
            return
        owner, self._sequences = self._sequences, None
        if isinstance(answer, InferResponse):
            assert owner is not None
            answer = owner.responded(self, answer) or answer
        super().finish(answer)

    def reschedule(self) -> None:
        """Have the model given the request again, in the next turn of its sequence."""
        if self.state is State.EXECUTING:
            assert self._sequences is not None
            self._sequences.rescheduled(self)
