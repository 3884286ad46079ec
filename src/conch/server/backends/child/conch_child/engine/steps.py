"""Encode STEP messages within the limits of frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..ipc.wire import MAX_VALUES, encode_to_server, shortened
from . import messages
from .driver import Event

# Of an event that describes a prompt, as the server allows while a request asks for that.
_MAX_PROMPT_VALUES = 100 * MAX_VALUES


def encode_step(events: Sequence[Event], stats: Sequence[Any], times: Sequence[int] = ()) -> tuple[bytes, list[int]]:
    """Return the frames of a step, and the keys of requests to abort: their events exceed the limits of a message."""
    events = [_bounded(event) for event in events]
    try:
        return encode_to_server((messages.STEP, events, stats, times)), []
    except ValueError:
        pass
    frames: list[bytes] = []
    refused: list[int] = []
    for event in events:
        frame, error = _encode_alone(event, stats)
        if error:
            failed: Event = (event[0], (), (messages.INVALID_ARG, error))
            frame = encode_to_server((messages.STEP, (failed,), stats, ()))
            refused.append(event[0])
        frames.append(frame)
    return b"".join(frames), refused


def _encode_alone(event: Event, stats: Sequence[Any]) -> tuple[bytes, str]:
    """Return the frame of one event, or an error."""
    try:
        return encode_to_server((messages.STEP, (event,), stats, ()), max_values=_MAX_PROMPT_VALUES), ""
    except ValueError as error:
        return b"", str(error)


def _bounded(event: Event) -> Event:
    key, deltas, end = event
    if end is not None and len(end) == 2:  # an error
        return key, deltas, (end[0], shortened(str(end[1])))
    return event
