"""`/v2/debug`: what the server knows about its requests, for tools that explain them."""

from typing import Final
from urllib.parse import parse_qs

from conch.base.errors import InvalidRequest, Unavailable
from conch.protocols.http.long_replies import ReplyTasks
from conch.protocols.http.message import HttpRequest, content_type
from conch.protocols.http.reply import HttpReply
from conch.server.frontends.parts import Parts

_DEFAULT_LAST_S: Final = 300.0
_MAX_LAST_S: Final = 1e9
_BINARY: Final = content_type(b"application/octet-stream")


class DebugEndpoints:
    """Serves `/v2/debug/events`."""

    def __init__(self, parts: Parts, tasks: ReplyTasks) -> None:
        self._events = parts.events
        self._tasks = tasks

    def events(self, request: HttpRequest, reply: HttpReply) -> None:
        """Answer with the event log of the last seconds, as a file. Raises ConchError."""
        if self._events is None:
            raise Unavailable("the event log is off (--event-log-bytes=0)")
        self._tasks.run(reply, self._send(reply, _last_s(request.query)))

    async def _send(self, reply: HttpReply, last_s: float) -> None:
        assert self._events is not None
        reply.send(200, _BINARY, await self._events.read_bytes(last_s))


def _last_s(query: bytes) -> float:
    """Return the seconds that a query asks for. Raises InvalidRequest."""
    values = parse_qs(query.decode("latin-1"), keep_blank_values=True, max_num_fields=None)
    if unknown := sorted(set(values) - {"last"}):
        raise InvalidRequest(f"unknown query parameter '{unknown[0]}', expected last=<seconds>")
    text = values.get("last", [str(_DEFAULT_LAST_S)])[-1]
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= _MAX_LAST_S:
        raise InvalidRequest(f"last={text[:50]} is not a number of seconds")
    return seconds
