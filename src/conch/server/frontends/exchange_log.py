# Compiled by mypyc in wheels.
"""Rows of the event log for the calls of clients."""

from collections.abc import Iterable
from typing import Final

from conch.domain.events.rows import ExchangeRow
from conch.domain.request import Timeline
from conch.protocols.http.message import HttpRequest
from conch.protocols.http.reply import HttpReply
from conch.server.observability.event_log import EventRecorder

_MAX_ID_BYTES: Final = 128


def log_http(
    recorder: EventRecorder, request: HttpRequest, reply: HttpReply, timeline: Timeline, protocol: str = "http"
) -> None:
    """Record a call in the event log; its row is complete when the client has the answer."""
    if not recorder.on:
        return
    row = recorder.exchange(timeline, protocol)
    if request.body_done:
        row.body_done = request.body_done
        if request.first_byte:
            row.first_byte, row.received = request.first_byte, request.head_done
        else:
            row.first_byte = row.received = request.body_done
    row.bytes_in = len(request.body)
    named = request.headers.get(b"x-request-id")
    if named is not None:
        _add_id(row, named)
    parent = request.headers.get(b"traceparent")
    if parent is not None:
        _add_id(row, _trace_id(parent))
    reply.record(row, recorder.exchanges)


def log_grpc(
    recorder: EventRecorder, metadata: Iterable[tuple[str, str | bytes]], size: int, began: int, timeline: Timeline
) -> ExchangeRow | None:
    """Return the row of a call that began at `began` (monotonic ns; 0: in one piece), None if the log is off."""
    if not recorder.on:
        return None
    row = recorder.exchange(timeline, "grpc")
    if began:
        row.first_byte = row.received = began
    row.bytes_in = size
    for key, value in metadata:
        if key == "x-request-id":
            _add_id(row, value if isinstance(value, bytes) else value.encode())
        elif key == "traceparent":
            _add_id(row, _trace_id(value if isinstance(value, bytes) else value.encode()))
    return row


def _trace_id(traceparent: bytes) -> bytes:
    return traceparent[3:35]  # not by a slice object, which compiled code takes for an integer


def _add_id(row: ExchangeRow, value: bytes) -> None:
    """Add a text by which a call is found, up to its first space."""
    words = value[:_MAX_ID_BYTES].split()
    if words:
        text = words[0].decode("latin-1")
        row.id = f"{row.id} {text}" if row.id else text
