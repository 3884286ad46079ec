"""Sequences of requests of one user with a correlation id, and which requests the client cancels."""

import secrets
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace

import numpy as np

from conch.domain.tensor import Tensor
from conch.measure.bench.generator import Answer, Cancel, ExpectedAnswer, PreparedRequest, Script, ScriptSource
from conch.measure.bench.input_settings import Amount, Cancellation
from conch.measure.bench.inputs.tensor_request import TensorRequestEncoder

# In turn, so that any share in percent is met.
_MIN_REQUESTS = 200
DEFAULT_LENGTH = Amount(20, 4)  # perf_analyzer's
# Ids are valid JSON numbers (2^53) after 2^32 sessions.
_FIRST_ID_BITS = 52


def with_cancellations(
    requests: list[PreparedRequest], cancel: Cancellation | None, seed: int
) -> list[PreparedRequest]:
    """Return the requests, repeated so that a random share of them is cancelled; bodies are shared."""
    if cancel is None:
        return requests
    repeats = -(-_MIN_REQUESTS // len(requests))
    total = repeats * len(requests)
    chosen = np.random.default_rng(seed).permutation(total)[: max(1, round(cancel.share * total))]
    marked = set(chosen.tolist())
    made = [replace(requests[number % len(requests)], index=number) for number in range(total)]
    for number in marked:
        _mark(made[number], cancel)
    return made


class CancellationPattern:
    """For scripts: spreads cancelled requests evenly over the numbers of requests."""

    def __init__(self, cancel: Cancellation | None) -> None:
        self._cancel = cancel

    def mark(self, request: PreparedRequest, number: int) -> None:
        """Mark the request of this number if it is to be cancelled."""
        cancel = self._cancel
        if cancel is not None and int((number + 1) * cancel.share) > int(number * cancel.share):
            _mark(request, cancel)


def _mark(request: PreparedRequest, cancel: Cancellation) -> None:
    by_time = cancel.after_ms is not None
    request.cancel = Cancel.AFTER_TIME if by_time else Cancel.AFTER_RESPONSES
    request.cancel_after = (cancel.after_ms if by_time else cancel.after_responses) or 1


@dataclass(frozen=True, slots=True)
class SequenceStep:
    """Tensors of one request, and the answer that is expected."""

    tensors: Sequence[Tensor]
    expected: ExpectedAnswer | None = None


class SequenceScript(Script):
    """Sends the steps of one sequence."""

    def __init__(self, source: "SequenceSource", session: int, steps: Sequence[SequenceStep]) -> None:
        self._source = source
        self._session = session
        self._steps = steps
        self._sent = 0

    def next(self, previous: Answer | None) -> PreparedRequest | None:  # noqa: ARG002
        if self._sent == len(self._steps):
            return None
        step = self._steps[self._sent]
        last = self._sent + 1 == len(self._steps)
        request = self._source.request(self._session, self._sent, step, last=last)
        self._sent += 1
        return request


class SequenceSource(ScriptSource):
    """Gives each session a sequence with its own correlation id.

    Ids begin at a random number, so that runs that follow each other, or run side by side, do not share sequences.
    """

    def __init__(
        self,
        sequences: Sequence[Sequence[SequenceStep]],
        encoder: TensorRequestEncoder,
        cancellations: CancellationPattern,
        *,
        text_ids: bool,
    ) -> None:
        self._sequences = sequences
        self._encoder = encoder
        self._cancellations = cancellations
        self._text_ids = text_ids
        self._first_id = 1 + len(sequences) + secrets.randbits(_FIRST_ID_BITS)

    def script(self, session: int) -> Script:
        return SequenceScript(self, session, self._sequences[session % len(self._sequences)])

    def expecting(self, answered: Callable[[PreparedRequest], ExpectedAnswer]) -> "SequenceSource":
        """Return a source whose answers are those that `answered` finds for the requests of each sequence, in order."""
        checked = []
        for number, steps in enumerate(self._sequences):
            session = number - len(self._sequences)  # negative: none of a run
            requests = [self.request(session, at, step, last=at + 1 == len(steps)) for at, step in enumerate(steps)]
            checked.append(
                [SequenceStep(step.tensors, answered(request)) for step, request in zip(steps, requests, strict=True)]
            )
        made = copy(self)
        made._sequences = checked
        return made

    def request(self, session: int, number: int, step: SequenceStep, *, last: bool) -> PreparedRequest:
        """Return the request with this number in its sequence."""
        identifier = self._first_id + session
        parameters = {
            "sequence_id": f"conch-bench-{identifier}" if self._text_ids else identifier,
            "sequence_start": number == 0,
            "sequence_end": last,
        }
        head, body = self._encoder.encode(step.tensors, parameters)
        request = PreparedRequest(number, head, body, self._encoder.response, expected=step.expected)
        self._cancellations.mark(request, session + number)
        return request
