"""The main loop of a model's process, which handles the server's messages one after the other."""

from __future__ import annotations

import gc
import importlib
import json
import os
from contextlib import suppress
from time import monotonic_ns
from typing import Any, Callable, Dict

from ..ipc import prctl
from ..ipc.wire import Message
from . import messages
from .api.metric_registry import MetricRegistry
from .api.model_config import ModelConfig
from .api.responses import ResponseWriter
from .api.session import Session, begin, current
from .bls import PendingCalls
from .channel import Channel
from .failure import describe
from .model_host import ModelHost, load_class


class MessageLoop:
    """Handles the server's messages. The first one, INITIALIZE or COMPLETE, names the model."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._metrics = MetricRegistry(channel.outputs.reserved)
        self._host: Any = None
        self._busy_poll = BusyPoll()
        self._handlers: Dict[int, Callable[[Message], None]] = {
            messages.INITIALIZE: self._initialize,
            messages.COMPLETE: self._complete,
            messages.CHECK_READY: self._check_ready,
            messages.SET_LOG_LEVEL: self._set_log_level,
        }

    def run(self) -> None:
        """Run until FINALIZE or the end of the connection."""
        while True:
            finished = monotonic_ns()
            try:
                message, payload = self._channel.receive(self._busy_poll.time)
            except EOFError:
                break
            started = monotonic_ns()
            self._busy_poll.waited(started - finished)
            kind = message[0]
            if kind == messages.EXECUTE:
                self._host.execute(message, payload)
                self._busy_poll.executed(len(message[2]), monotonic_ns() - started)
            elif kind == messages.FINALIZE:
                break
            else:
                self._handlers[kind](message)
            # Local variables must not keep a request's memory while this loop waits.
            del message, payload
        if self._host is not None:
            self._host.finalize()

    def _initialize(self, message: Message) -> None:
        arguments, options = message[1], message[2]
        name = arguments["model_instance_name"]
        calls = self._begin(options, name)
        with suppress(OSError):  # cosmetic; the process may have begun under another name
            prctl.set_name("conch " + name)
        writer = ResponseWriter(self._channel, name, options["outputs"], options["decoupled"])
        host = ModelHost(writer, calls, name)
        error = ""
        try:
            host.initialize(self._model_class(options), arguments)
            self._host = host
            calls.phase = "execute"
            # The model's objects stay, so that the garbage collector need not traverse them repeatedly.
            gc.collect()
            gc.freeze()
        except BaseException as failure:
            error = describe(failure)
        self._channel.send((messages.INITIALIZED, error, self._host is not None and self._host.has_is_ready))

    def _complete(self, message: Message) -> None:
        options, document = message[1], message[2]
        self._begin(options).phase = "auto_complete_config"
        error = ""
        try:
            model = self._model_class(options)
            if hasattr(model, "auto_complete_config"):
                config = model.auto_complete_config(ModelConfig(document))
                if not isinstance(config, ModelConfig):
                    raise TypeError(
                        "auto_complete_config function in model '{}' must return a valid pb.ModelConfig object.".format(
                            json.loads(document)["name"]
                        )
                    )
                document = json.dumps(config.as_dict())
        except BaseException as failure:
            error = describe(failure)
        try:
            self._channel.send((messages.COMPLETED, error, document))
        except ValueError as failure:
            self._channel.send((messages.COMPLETED, describe(failure), ""))

    def _check_ready(self, _: Message) -> None:
        self._channel.send((messages.READINESS, self._host.is_ready()))

    def _set_log_level(self, message: Message) -> None:
        current().log_level = message[1]

    def _model_class(self, options: Dict[str, Any]) -> Any:
        if options["adapter"]:
            return importlib.import_module(options["adapter"]).TritonPythonModel
        return load_class(options["directory"], options["version"], options["filename"])

    def _begin(self, options: Dict[str, Any], instance_name: str = "") -> PendingCalls:
        self._channel.trim_keep_bytes = options["kept_size"]
        self._busy_poll = BusyPoll(options["busy_poll_ns"])
        calls = PendingCalls(self._channel, options.get("decoupled", False))
        directory = os.path.join(options["directory"], options["version"])  # noqa: PTH118
        begin(Session(self._channel, calls, self._metrics, options["log_level"], directory, instance_name))
        return calls


class BusyPoll:
    """Decides how long a model's process busy-polls for its next request before it blocks.

    Waking a process takes tens of microseconds, a large part of a fast model's latency. A client that sends its
    requests one after the other sends the next within that time, so the process busy-polls for it. It does so only
    after a fast execution of a single request that also arrived quickly: with many clients the next request is already
    there, and rare requests do not justify it. Linux polls likewise before it halts an idle processor (haltpoll).

    Times are in nanoseconds; a `limit` of 0 turns busy polling off.
    """

    __slots__ = ("_limit", "_quick", "_soon")

    def __init__(self, limit: int = 0) -> None:
        self._limit = limit
        self._soon = False
        self._quick = False

    @property
    def time(self) -> int:
        """How long to busy-poll now."""
        return self._limit if self._soon and self._quick else 0

    def waited(self, time: int) -> None:
        """Record how long the last message was waited for."""
        self._soon = time < self._limit

    def executed(self, requests: int, time: int) -> None:
        """Record the time of an execution."""
        self._quick = requests == 1 and time < self._limit
