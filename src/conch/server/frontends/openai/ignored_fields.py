"""Reports the fields of requests that have no effect: in a header of the answer, a counter, the log, a degradation."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator

from conch.domain.exposition import Family, Point
from conch.protocols.http.reply import HttpReply
from conch.protocols.openai.fields import InvalidField, ReadCall, ignored_header

_log = logging.getLogger(__name__)

_REASON = "field_ignored"
# In metrics, for names that only the client knows.
_OTHER = "other"
_MAX_LOGGED = 256
_MAX_SERIES = 512  # without those of other fields


class IgnoredFields:
    """Reports ignored fields, or refuses them if it is `strict`. `note` reports a degradation and its detail."""

    def __init__(self, strict: bool = False, note: Callable[[str, str], None] = lambda _reason, _detail: None) -> None:
        self._strict = strict
        self._note = note
        self._counts: Counter[tuple[str, str]] = Counter()  # by endpoint and field
        self._logged: set[tuple[str, str]] = set()

    def report(self, endpoint: str, reply: HttpReply, call: ReadCall) -> None:
        """Report the ignored fields of a call. `endpoint` is a fixed path. Raises InvalidField if it is strict."""
        if not call.ignored:
            return
        if self._strict:
            first = call.ignored[0]
            raise InvalidField(first.name, first.refusal)
        reply.headers += ignored_header(call.ignored)
        reply.note_degraded(_REASON)
        for name, known in dict.fromkeys((field.shown, field.known) for field in call.ignored):
            counted = (endpoint, name if known else _OTHER)
            if counted not in self._counts and len(self._counts) >= _MAX_SERIES:
                counted = (endpoint, _OTHER)
            self._counts[counted] += 1
            if (endpoint, name) not in self._logged and len(self._logged) < _MAX_LOGGED:
                self._logged.add((endpoint, name))
                _log.info("the field '%s' of requests to %s has no effect", name, endpoint)
        self._note(_REASON, f"fields of requests to {endpoint} have no effect")

    def families(self) -> Iterator[Family]:
        """Yield the counter. Its fields are those of the tables, and one for all others."""
        points = [
            Point(count, {"endpoint": endpoint, "field": name}) for (endpoint, name), count in self._counts.items()
        ]
        yield Family.of("conch_ignored_fields_total", points)
