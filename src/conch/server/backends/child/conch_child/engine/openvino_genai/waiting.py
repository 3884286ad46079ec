"""Requests that wait before OpenVINO GenAI: for a structure to be compiled, another LoRA adapter, or a new pipeline.

The library applies one adapter, or none, to all of its requests, so requests with different adapters take turns. It
keeps every structure that it has compiled, so a pipeline is replaced after `MAX_STRUCTURES`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

from .grammars import GrammarChecker, Structure

# Different structures that one pipeline compiles, and characters of them. 100 KB each is usual in memory.
MAX_STRUCTURES = 1000
_MAX_STRUCTURE_CHARACTERS = 8 << 20


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
        self._compiled: set[Structure] = set()  # by the pipeline
        self._characters = 0  # of them
        self._grammar_checker = GrammarChecker()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def must_wait(self, request: WaitingRequest) -> bool:
        """Return whether a request must wait. No request overtakes one that waits for its adapter."""
        return (
            request.structure is not None
            or request.adapter != self.adapter
            or any(self._must_be_idle(other) for other in self._waiting.values())
        )

    def _must_be_idle(self, request: WaitingRequest) -> bool:
        return request.adapter != self.adapter or self.needs_pipeline(request)

    def needs_pipeline(self, request: WaitingRequest) -> bool:
        """Return whether a request has a structure that the pipeline may not compile any more."""
        structure = request.structure
        if structure is None or structure in self._compiled:
            return False
        return len(self._compiled) >= MAX_STRUCTURES or self._characters >= _MAX_STRUCTURE_CHARACTERS

    def note_pipeline(self) -> None:
        """Note that the pipeline is a new one, without structures and adapter."""
        self.adapter = ""
        self._compiled.clear()
        self._characters = 0

    def note_compiled(self, structure: Structure) -> None:
        """Note that the pipeline compiles a structure."""
        if structure not in self._compiled:
            self._compiled.add(structure)
            self._characters += len(structure[1])

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
        """Return the next request and its structure's error. Some wait until the engine is `idle`."""
        for request in self._waiting.values():
            error = self._check(request)
            if error is None:
                continue
            if not error and self._must_be_idle(request) and not idle:
                return None
            del self._waiting[request.key]
            return request, error
        return None

    def _check(self, request: WaitingRequest) -> Optional[str]:
        return "" if request.structure is None else self._grammar_checker.check(request.structure, request.client)
