"""The process's session with the server, for API functions without a handle such as `Logger.log_info`.

Triton's API is global: models call it from anywhere. This module holds the one session of the process. A process
without a session, such as a worker that the model started, can still import the API.
"""

from __future__ import annotations

import os
from typing import Optional

from ..bls import PendingCalls
from ..channel import Channel
from .errors import TritonModelException
from .metric_registry import MetricRegistry


class Session:
    """The connection to the server and the settings of the model's API."""

    def __init__(
        self,
        channel: Channel,
        calls: PendingCalls,
        metrics: MetricRegistry,
        log_level: int,
        directory: str,
        instance_name: str,
    ) -> None:
        self.channel = channel
        self.calls = calls
        self.metrics = metrics
        self.log_level = log_level
        self.directory = directory  # of the model's version
        self.instance_name = instance_name


_session: Optional[Session] = None


def begin(session: Session) -> None:
    """Set the process's session. Processes that the model forks have none."""
    global _session
    _session = session
    os.register_at_fork(after_in_child=_end)


def current() -> Session:
    """Return the process's session. Raises TritonModelException in a process that the server did not start."""
    if _session is None:
        raise TritonModelException("this works only in the process in which the server runs the model")
    return _session


def failure(operation: str, text: str) -> TritonModelException:
    """Return the exception for an operation that the server refuses, in Triton's words."""
    name = current().instance_name
    return TritonModelException(
        "{}: Failed to process the request for model '{}', message: {}".format(operation, name, text)
    )


def _end() -> None:
    global _session
    if _session is not None:
        _session.channel.disconnect()
        _session.metrics.disconnect()
    _session = None
