# Compiled by mypyc in wheels.
"""An admitted request, from the queue to its end, which comes exactly once.

This record holds the caller's callback and, as every `Waiting`, the place and deadline in the queue and the state. The
first of an answer, a queue timeout and a cancellation settles the request; later ones are no-ops.
"""

from collections.abc import Callable
from time import monotonic_ns
from typing import Protocol

from conch.base.errors import BackendError, Cancelled, ConchError
from conch.domain.request import InferRequest, InferResponse, Respond
from conch.domain.scheduling.waiting import State
from conch.server.backends.batch import Batch, Execution
from conch.server.observability.event_log import ModelEvents


class Owner(Protocol):
    """What admitted the request, such as a served model. Called once at its end, before the caller is."""

    def settled(self, pending: "Pending", answer: InferResponse | ConchError | None, previous: State) -> None:
        """Count the request and drop it. `previous` is the state before its end."""


class Pending(Execution):
    """An admitted request; an `Execution` to the instance that gets it, an `Admitted` to the frontend that sent it."""

    __slots__ = (
        "_notify",
        "_owner",
        "batch",
        "batch_number",
        "cache_hit",
        "events",
        "failure",
        "first_response",
        "respond",
    )

    def __init__(
        self, request: InferRequest, respond: Respond, owner: Owner, events: ModelEvents | None = None
    ) -> None:
        """Admit a request; its end is recorded by `events`."""
        super().__init__(request)
        self.events = events
        self.batch_number = 0  # of the batch that executes it, in the event log
        self.cache_hit = False
        if events is not None:
            events.begin(request)
        self.batch: Batch | None = None
        self.failure: ConchError | None = None  # the first error among the responses of a decoupled model
        self.first_response = 0  # when the first response before the final one was sent, monotonic ns
        self.respond = respond
        self._owner: Owner | None = owner
        self._notify: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return f"<Pending {self.request.model_name} id={self.request.id!r} {self.state.value}>"

    @property
    def owner(self) -> Owner | None:
        """What has admitted it; None once it has ended."""
        return self._owner

    @property
    def cancelled(self) -> bool:
        """Whether it has ended, so that no caller waits for an answer."""
        return self.state is State.DONE

    def on_cancel(self, notify: Callable[[], None]) -> None:
        """Call `notify` if the caller cancels while an instance works on the request."""
        if self.state is State.DONE:
            notify()
        else:
            self._notify = notify

    def send(self, response: InferResponse | ConchError) -> None:
        """Deliver one response; more may follow, also after an error, which counts the request as failed."""
        if self.state is not State.DONE:
            self.first_response = self.first_response or monotonic_ns()
            if isinstance(response, ConchError):
                self.failure = self.failure or response
            elif self.request.span is not None:
                self.request.span.responded(response)
            self.respond(response, False)

    def finish(self, answer: InferResponse | ConchError | None) -> None:
        """Settle the request: first its owner, then the caller is called. A no-op if it is settled already."""
        previous = self.state
        if previous is State.DONE:
            return
        self.state = State.DONE
        self.request.timeline.done = monotonic_ns()
        # Owner and callback refer to this record: dropping them breaks the cycle, so that large tensors are freed
        # without the garbage collector.
        owner, self._owner = self._owner, None
        respond, self.respond = self.respond, _ignore
        self._notify = None
        assert owner is not None
        owner.settled(self, answer, previous)
        request = self.request
        if self.events is not None and self.events.on:
            response = answer if isinstance(answer, InferResponse) else None
            error = answer if isinstance(answer, ConchError) else self.failure
            self.events.ended(
                request,
                self.batch_number,
                response,
                error,
                first_response=self.first_response,
                cache_hit=self.cache_hit,
            )
        if request.span is not None:
            request.span.settled(request, answer, self.failure)
        respond(answer, True)

    def reschedule(self) -> None:
        """End the request with an error: only requests of iterative sequences can be rescheduled."""
        self.finish(not_iterative(self.request.model_name))

    def cancel(self, reason: str = "request was cancelled by the client") -> None:
        """End the request because the caller needs no answer, and notify the instance that executes it."""
        self.abort(Cancelled(reason))

    def abort(self, error: ConchError) -> None:
        """End the request with an error, and notify the instance that executes it."""
        notify = self._notify
        self.finish(error)
        if notify is not None:
            notify()


def not_iterative(model: str) -> BackendError:
    """Return the error for a model that reschedules a request without iterative sequences."""
    return BackendError(
        f"model '{model}' has rescheduled a request, which needs sequence_batching {{ iterative_sequence: true }}"
    )


def _ignore(_answer: InferResponse | ConchError | None, _final: bool) -> None:
    """Drop a response that comes after the end."""
