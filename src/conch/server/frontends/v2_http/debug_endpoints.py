"""`/v2/debug`: what the server knows about its requests, for tools that explain them."""

from typing import Final
from urllib.parse import parse_qs

import orjson

from conch.base.errors import InvalidRequest, Unavailable
from conch.protocols.http.errors import JSON
from conch.protocols.http.long_replies import ReplyTasks
from conch.protocols.http.message import HttpRequest, content_type
from conch.protocols.http.reply import HttpReply
from conch.server.frontends.parts import Parts
from conch.server.observability.event_reading import EventReader
from conch.server.observability.incidents.incidents import Incidents
from conch.server.observability.incidents.triggers import Incident

_DEFAULT_LAST_S: Final = 300.0
_MAX_LAST_S: Final = 1e9
MAX_READING: Final = 4  # readings of the event log at the same time, each with a copy of it
_BINARY: Final = content_type(b"application/octet-stream")


class DebugEndpoints:
    """Serves `/v2/debug`."""

    def __init__(self, parts: Parts, tasks: ReplyTasks) -> None:
        self._events = parts.events
        self._incidents = parts.incidents
        self._tasks = tasks
        self._reading = 0

    def events(self, request: HttpRequest, reply: HttpReply) -> None:
        """Answer with the event log of the last seconds, as a file. Raises ConchError."""
        if self._events is None:
            raise Unavailable("the event log is off (--event-log-bytes=0)")
        if self._reading >= MAX_READING:
            raise Unavailable("the event log is being read by others; try again in some seconds", retry_after_s=5)
        last_s = _last_s(request.query)
        self._reading += 1
        self._tasks.run(reply, self._send(reply, self._events, last_s))

    def incident(self, request: HttpRequest, reply: HttpReply) -> None:
        """GET a bundle of the last seconds, or POST to have one written to --incident-dir. Raises ConchError."""
        if self._incidents is None:
            raise Unavailable("this server writes no incident bundles")
        last_s = _last_s(request.query)
        incident = Incident("request", f"a client at {reply.peer or 'a unix socket'} asked for a bundle")
        if request.method == b"POST":
            reply.send(200, JSON, orjson.dumps({"outcome": self._incidents.report(incident)}))
        else:
            self._tasks.run(reply, self._send_bundle(reply, self._incidents, last_s, incident))

    async def _send_bundle(self, reply: HttpReply, incidents: Incidents, last_s: float, incident: Incident) -> None:
        reply.send(200, _BINARY, await incidents.bundle(last_s, incident))

    async def _send(self, reply: HttpReply, events: EventReader, last_s: float) -> None:
        try:
            log = await events.read_bytes(last_s)
        finally:
            self._reading -= 1
        reply.send(200, _BINARY, log)


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
