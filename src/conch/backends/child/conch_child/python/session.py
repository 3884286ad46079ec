"""What functions of `triton_python_backend_utils` that are given nothing, such as `Logger.log_info`, work on.

The model's API is global: a model calls it from anywhere without a handle. So there is one session in a process, and
this module is the one place that holds it. A process without one, such as a worker that the model has started, can
still import the API.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Optional

from .errors import TritonModelException

if TYPE_CHECKING:
    from .calling import PendingCalls
    from .channel import Channel
    from .metrics import MetricRegistry


class Session:
    """The connection to the server, and what the model's API needs to know."""

    def __init__(
        self, channel: Channel, calls: PendingCalls, metrics: MetricRegistry, log_level: int, model_directory: str
    ) -> None:
        self.channel = channel
        self.calls = calls
        self.metrics = metrics
        self.log_level = log_level
        self.model_directory = model_directory


_session: Optional[Session] = None


def begin(session: Session) -> None:
    """Make this the process's session, but not that of processes which the model forks."""
    global _session
    _session = session
    os.register_at_fork(after_in_child=_end)


def current() -> Session:
    """Return the process's session. Raises TritonModelException in a process that the server has not started."""
    if _session is None:
        raise TritonModelException("this works only in the process in which the server runs the model")
    return _session


def _end() -> None:
    global _session
    if _session is not None:
        _session.channel.disconnect()
    _session = None
