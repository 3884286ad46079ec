"""Requests that OpenVINO GenAI must not have yet: their structure is being compiled, or another adapter is at work.

The library applies one LoRA adapter, or none, to all that it computes, so that requests with different ones take turns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

from .grammars import Grammars, Structure


@dataclass
class WaitingRequest:
    """A request that waits, with what is to be given to the library."""

    key: int
    token_ids: Any
    configuration: Any
    params: dict[str, Any]
    adapter: str

    @property
    def structure(self) -> Optional[Structure]:
        """What its answer must match, if anything."""
        return tuple(self.params["structured"]) if "structured" in self.params else None


class WaitingRoom:
    """Requests in the order of their arrival. `adapter` is the one that is at work, "" for none."""

    def __init__(self) -> None:
        self.adapter = ""
        self._waiting: dict[int, WaitingRequest] = {}
        self._grammars = Grammars()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def wants(self, request: WaitingRequest) -> bool:
        """Whether a request has to come in. Nobody overtakes one that waits for its adapter."""
        return (
            request.structure is not None
            or request.adapter != self.adapter
            or any(other.adapter != self.adapter for other in self._waiting.values())
        )

    def enter(self, request: WaitingRequest) -> None:
        """Take a request in."""
        self._waiting[request.key] = request
        if request.structure is not None:
            self._grammars.verdict(request.structure)  # which has it looked at, if it is new

    def leave(self, key: int) -> None:
        """Forget a request, if it is here."""
        self._waiting.pop(key, None)

    @property
    def ready(self) -> bool:
        """Whether one could go if nothing were at work."""
        return any(self._verdict(request) is not None for request in self._waiting.values())

    def call(self, *, idle: bool) -> Optional[tuple[WaitingRequest, str]]:
        """Return one that may go, and what is wrong with its structure; it may change the adapter if nothing runs."""
        for request in self._waiting.values():
            wrong = self._verdict(request)
            if wrong is None:
                continue
            if not wrong and request.adapter != self.adapter and not idle:
                return None
            del self._waiting[request.key]
            return request, wrong
        return None

    def _verdict(self, request: WaitingRequest) -> Optional[str]:
        return "" if request.structure is None else self._grammars.verdict(request.structure)
