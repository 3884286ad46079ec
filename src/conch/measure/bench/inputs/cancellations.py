"""Choose which requests the client cancels."""

import numpy as np

from conch.measure.bench.input_settings import Cancellation
from conch.measure.bench.prepared_request import Cancel, PreparedRequest

# In turn, so that any share in percent is met.
_MIN_REQUESTS = 200


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
    return [
        _copy(requests[number % len(requests)], number, cancel if number in marked else None) for number in range(total)
    ]


class CancellationPattern:
    """For scripts: spreads cancelled requests evenly over the numbers of requests."""

    def __init__(self, cancel: Cancellation | None) -> None:
        self._cancel = cancel

    def mark(self, request: PreparedRequest, number: int) -> None:
        """Mark the request of this number if it is to be cancelled."""
        cancel = self._cancel
        if cancel is not None and int((number + 1) * cancel.share) > int(number * cancel.share):
            _mark(request, cancel)


def _copy(request: PreparedRequest, index: int, cancel: Cancellation | None) -> PreparedRequest:
    made = PreparedRequest(
        index,
        request.head,
        request.body,
        request.response,
        expected=request.expected,
        input_tokens=request.input_tokens,
        changing=request.changing,
    )
    if cancel is not None:
        _mark(made, cancel)
    return made


def _mark(request: PreparedRequest, cancel: Cancellation) -> None:
    by_time = cancel.after_ms is not None
    request.cancel = Cancel.AFTER_TIME if by_time else Cancel.AFTER_RESPONSES
    request.cancel_after = (cancel.after_ms if by_time else cancel.after_responses) or 1
