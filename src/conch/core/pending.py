"""One admitted request, from the queue to its only end.

Everything about it lives in this one record: the caller's callback, its place and deadline in the queue, its state.
Whoever comes first, the instance with an answer, the queue with a time-out or the caller with a cancellation, settles
it; the others find it done and change nothing.
"""

from collections.abc import Callable
from enum import Enum
from time import monotonic_ns
from typing import Protocol

from conch.backends.batch import Batch
from conch.errors import BackendError, Cancelled, ConchError
from conch.request import InferRequest, InferResponse, Respond


class State(Enum):
    """Where an admitted request stands."""

    QUEUED = "queued"  # admitted, not given to an instance
    EXECUTING = "executing"  # an instance, or an ensemble's steps, work on it
    DONE = "done"  # the caller has been told; nothing changes any more


class Owner(Protocol):
    """The served model that admitted the request: told once how it ended, before the caller is."""

    def settled(self, pending: "Pending", answer: InferResponse | ConchError | None, was: State) -> None:
        """Take the request out of the books."""


class Pending:
    """An admitted request; an `Execution` to the instance that gets it, an `Admitted` to the frontend that sent it."""

    __slots__ = (
        "_notify",
        "_owner",
        "batch",
        "batch_size",
        "expires",
        "failure",
        "first_response",
        "group_key",
        "level",
        "queued",
        "request",
        "respond",
        "state",
    )

    def __init__(self, request: InferRequest, respond: Respond, owner: Owner) -> None:
        self.request = request
        self.state = State.QUEUED
        self.level = 0  # priority level; 1 is the most urgent, 0 where the model has none
        self.expires = 0  # when its queue policy acts, monotonic ns; 0: never
        self.queued = 0  # when it was admitted, monotonic ns
        self.batch_size = request.batch_size
        self.group_key: object = None  # requests with equal keys may share a batch
        self.batch: Batch | None = None
        self.failure: ConchError | None = None  # the first error that a decoupled model sent among its responses
        self.first_response = 0  # when the first response before the final one was sent, monotonic ns
        self.respond = respond
        self._owner: Owner | None = owner
        self._notify: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return f"<Pending {self.request.model_name} id={self.request.id!r} {self.state.value}>"

    @property
    def owner(self) -> Owner | None:
        """What has admitted it; None when it has ended."""
        return self._owner

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for an answer any more."""
        return self.state is State.DONE

    def on_cancel(self, notify: Callable[[], None]) -> None:
        """Have `notify` called if the caller cancels while an instance works on the request."""
        if self.state is State.DONE:
            notify()
        else:
            self._notify = notify

    def send(self, response: InferResponse | ConchError) -> None:
        """Pass one response on; more follow, after an error too, which makes it a failed request."""
        if self.state is not State.DONE:
            self.first_response = self.first_response or monotonic_ns()
            if isinstance(response, ConchError):
                self.failure = self.failure or response
            elif self.request.span is not None:
                self.request.span.responded(response)
            self.respond(response, False)

    def finish(self, answer: InferResponse | ConchError | None) -> None:
        """Settle the request: books first, then the caller. Does nothing if it is settled already."""
        was = self.state
        if was is State.DONE:
            return
        self.state = State.DONE
        self.request.timeline.done = monotonic_ns()
        # Whoever is told knows this record as well. Letting go of them leaves no cycle that would keep large tensors
        # until the garbage collector comes.
        owner, self._owner = self._owner, None
        respond, self.respond = self.respond, _nobody
        self._notify = None
        assert owner is not None
        owner.settled(self, answer, was)
        request = self.request
        if request.span is not None:
            request.span.settled(request, answer, self.failure)
        respond(answer, True)

    def reschedule(self) -> None:
        """End the request: what its model asks for is for iterative sequences, which this is not one of."""
        self.finish(not_iterative(self.request.model_name))

    def cancel(self, why: str = "request was cancelled by the client") -> None:
        """End the request because the caller wants, or can take, no answer. Whoever works on it is told."""
        self.abort(Cancelled(why))

    def abort(self, error: ConchError) -> None:
        """End the request with an error from outside. Whoever works on it is told."""
        notify = self._notify
        self.finish(error)
        if notify is not None:
            notify()


def not_iterative(model: str) -> BackendError:
    """Return the error for a model that wants a request again and may not."""
    return BackendError(
        f"model '{model}' has rescheduled a request, which needs sequence_batching {{ iterative_sequence: true }}"
    )


def _nobody(_answer: InferResponse | ConchError | None, _final: bool) -> None:
    """Hear of an answer that comes after the end."""
