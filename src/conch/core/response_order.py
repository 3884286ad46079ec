"""`preserve_ordering`: responses leave in the order in which their requests came, whichever instance is quicker."""

from collections import deque

from conch.errors import ConchError
from conch.request import InferResponse, Respond


class _Held:
    """One request's place in the order, with what it has answered so far."""

    __slots__ = ("answers", "done", "respond")

    def __init__(self, respond: Respond) -> None:
        self.respond = respond
        self.answers: list[tuple[InferResponse | ConchError | None, bool]] = []
        self.done = False


class ResponseOrder:
    """Holds answers back until all earlier requests have been answered in full."""

    def __init__(self) -> None:
        self._places: deque[_Held] = deque()

    def __len__(self) -> int:
        return len(self._places)

    def enter(self, respond: Respond) -> Respond:
        """Take the next place; returns the callback to answer by."""
        place = _Held(respond)
        self._places.append(place)

        def answer(response: InferResponse | ConchError | None, final: bool) -> None:
            place.answers.append((response, final))
            place.done = final
            self._release()

        return answer

    def _release(self) -> None:
        while self._places:
            first = self._places[0]
            answers, first.answers = first.answers, []
            if first.done:
                # Off the queue before its caller is told, who may come straight back in with the next request.
                self._places.popleft()
            for response, final in answers:
                first.respond(response, final)
            if not first.done:
                return
