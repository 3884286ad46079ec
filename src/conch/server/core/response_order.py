# Compiled by mypyc in wheels.
"""`preserve_ordering`: responses are sent in the order in which their requests arrived."""

from collections import deque
from functools import partial

from conch.base.errors import ConchError
from conch.domain.request import InferResponse, Respond


class _Held:
    """The place of a request in the order, with the responses that are held back."""

    __slots__ = ("answers", "done", "respond")

    def __init__(self, respond: Respond) -> None:
        self.respond = respond
        self.answers: list[tuple[InferResponse | ConchError | None, bool]] = []
        self.done = False


class ResponseOrder:
    """Holds responses back until all earlier requests have ended."""

    def __init__(self) -> None:
        self._places: deque[_Held] = deque()

    def __len__(self) -> int:
        return len(self._places)

    def enter(self, respond: Respond) -> Respond:
        """Reserve the next place and return the callback to answer by."""
        place = _Held(respond)
        self._places.append(place)
        return partial(self._answer, place)

    def _answer(self, place: _Held, response: InferResponse | ConchError | None, final: bool) -> None:
        place.answers.append((response, final))
        place.done = final
        self._release()

    def _release(self) -> None:
        while self._places:
            first = self._places[0]
            answers, first.answers = first.answers, []
            if first.done:
                # Removed before the caller is called, which may submit the next request at once.
                self._places.popleft()
            for response, final in answers:
                first.respond(response, final)
            if not first.done:
                return
