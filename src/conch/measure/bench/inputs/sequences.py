"""Sequences: requests of one user with a correlation id, the first and the last of them marked."""

import secrets
from collections.abc import Callable, Sequence
from copy import copy

from conch.domain.tensor import Tensor
from conch.measure.bench.input_settings import Amount
from conch.measure.bench.inputs.cancellations import CancellationPattern
from conch.measure.bench.inputs.tensor_request import ParameterMap, TensorRequestEncoder
from conch.measure.bench.prepared_request import Answer, ExpectedAnswer, PreparedRequest, Script, ScriptSource

DEFAULT_LENGTH = Amount(20, 4)  # perf_analyzer's
# Ids are valid JSON numbers (2^53) after 2^32 sessions.
_FIRST_ID_BITS = 52


class SequenceStep:
    """Tensors of one request, and the answer that is expected."""

    __slots__ = ("expected", "tensors")

    def __init__(self, tensors: Sequence[Tensor], expected: ExpectedAnswer | None = None) -> None:
        self.tensors = tensors
        self.expected = expected


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
        parameters: ParameterMap,
        cancellations: CancellationPattern,
        *,
        text_ids: bool,
    ) -> None:
        self._sequences = sequences
        self._encoder = encoder
        self._parameters = parameters
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
                [SequenceStep(step.tensors, answered(each)) for step, each in zip(steps, requests, strict=True)]
            )
        made = copy(self)
        made._sequences = checked
        return made

    def request(self, session: int, number: int, step: SequenceStep, *, last: bool) -> PreparedRequest:
        """Return the request with this number in its sequence."""
        identifier = self._first_id + session
        parameters = {
            **self._parameters,
            "sequence_id": f"conch-bench-{identifier}" if self._text_ids else identifier,
            "sequence_start": number == 0,
            "sequence_end": last,
        }
        head, body = self._encoder.encode(step.tensors, parameters)
        request = PreparedRequest(number, head, body, self._encoder.response, expected=step.expected)
        self._cancellations.mark(request, session + number)
        return request
