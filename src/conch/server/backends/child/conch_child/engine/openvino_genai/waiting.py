"""Requests that wait before OpenVINO GenAI: for a structure to be compiled, or for another LoRA adapter.

The library applies one adapter, or none, to all of its requests, so requests with different adapters take turns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

from .grammars import GrammarChecker, Structure


@dataclass
class WaitingRequest:
    """A waiting request and the arguments of the library's `add_request`."""

    key: int
    token_ids: Any
    configuration: Any
    params: dict[str, Any]
    adapter: str

    @property
    def structure(self) -> Optional[Structure]:
        """The structured output specification, None without one."""
        return tuple(self.params["structured"]) if "structured" in self.params else None

    @property
    def client(self) -> str:
        """In whose turn the structure is compiled."""
        return str(self.params.get("client", ""))


class WaitingRequests:
    """Waiting requests in order of arrival. `adapter` is the one that the library applies now, "" for none."""

    def __init__(self) -> None:
        self.adapter = ""
        self._waiting: dict[int, WaitingRequest] = {}
        self._grammar_checker = GrammarChecker()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def must_wait(self, request: WaitingRequest) -> bool:
        """Return whether a request must wait. No request overtakes one that waits for its adapter."""
        return (
            request.structure is not None
            or request.adapter != self.adapter
            or any(other.adapter != self.adapter for other in self._waiting.values())
        )

    def add(self, request: WaitingRequest) -> None:
        """Add a request and start compiling its structure."""
        self._waiting[request.key] = request
        if request.structure is not None:
            self._grammar_checker.check(request.structure, request.client)

    def remove(self, key: int) -> None:
        """Remove a request, if it is waiting."""
        self._waiting.pop(key, None)

    @property
    def ready(self) -> bool:
        """Whether a request has no structure that is still being compiled."""
        return any(self._check(request) is not None for request in self._waiting.values())

    def pop_ready(self, *, idle: bool) -> Optional[tuple[WaitingRequest, str]]:
        """Return the next request and its structure's error. One with another adapter must wait for an idle engine."""
        for request in self._waiting.values():
            error = self._check(request)
            if error is None:
                continue
            if not error and request.adapter != self.adapter and not idle:
                return None
            del self._waiting[request.key]
            return request, error
        return None

    def _check(self, request: WaitingRequest) -> Optional[str]:
        return "" if request.structure is None else self._grammar_checker.check(request.structure, request.client)
