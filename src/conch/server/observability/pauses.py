"""Pauses of the event loop for the event log: collections of garbage."""

import gc
from time import monotonic_ns, thread_time_ns
from typing import Any

from conch.server.observability.event_log import EventRecorder


class GarbagePauses:
    """Records each collection while it is started. All threads that run Python wait for one, whichever begins it."""

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder
        self._began = 0
        self._cpu_ns = 0

    def start(self) -> None:
        """Begin to record."""
        if self._recorder.on:
            gc.callbacks.append(self._collected)

    def stop(self) -> None:
        """End. Safe to call more than once."""
        if self._collected in gc.callbacks:
            gc.callbacks.remove(self._collected)

    def _collected(self, phase: str, facts: dict[str, Any]) -> None:
        if phase == "start":
            self._began, self._cpu_ns = monotonic_ns(), thread_time_ns()
        elif self._began:
            cpu_ns = thread_time_ns() - self._cpu_ns
            self._recorder.pause(f"gc {facts['generation']}", self._began, monotonic_ns(), cpu_ns)
            self._began = 0
