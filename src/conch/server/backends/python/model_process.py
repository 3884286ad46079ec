# Compiled by mypyc in wheels.
"""Life of the process of a Python model: start, initialize, check, stop, death."""

import asyncio
import errno
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from conch.base.errors import Code, ConchError, ModelLoadError, ProcessDied, Unavailable
from conch.base.logs import MODEL_LOGGER
from conch.server.backends.base import InstancePlan, ModelSource
from conch.server.backends.batch import Batch
from conch.server.backends.child.conch_child.ipc.wire import Message, WireError
from conch.server.backends.child.conch_child.python import messages
from conch.server.backends.processes import untrusted
from conch.server.backends.processes.child_process import ChildProcess
from conch.server.backends.processes.launch import Exit, Launcher
from conch.server.backends.python.custom_metrics import InstanceMetrics
from conch.server.backends.python.in_flight_requests import InFlightRequests
from conch.server.backends.python.model_code import Adapter, code_path, initialize_arguments
from conch.server.backends.python.outgoing_bls import Executions, OutgoingCalls
from conch.server.backends.python.settings import PythonSettings

_log: Final = logging.getLogger(MODEL_LOGGER)

# For `is_ready` of the model; a model that takes longer is not ready.
_READINESS_TIMEOUT_S: Final = 5.0


class ModelProcess:
    """A process that holds one version of a model, from `start` to its exit.

    `on_death` is called if it exits without having been stopped, after all its requests have been answered.
    """

    def __init__(
        self,
        name: str,
        source: ModelSource,
        settings: PythonSettings,
        metrics: InstanceMetrics,
        on_death: Callable[[Exit], None],
        calls: Callable[[ChildProcess, Executions], OutgoingCalls] | None = None,
        adapter: Adapter | None = None,
    ) -> None:
        """`calls` makes the model's BLS calls; without it, the model cannot call others."""
        self.name = name
        self._source = source
        self._adapter = adapter
        self._settings = settings
        self._on_death = on_death
        self._loop = asyncio.get_running_loop()
        self._child = ChildProcess(name, self._received, self._exited)
        self.requests = InFlightRequests(self._child, source, settings, metrics, calls)
        self._log_level = _log.getEffectiveLevel()
        # Error text, and what else INITIALIZED or COMPLETED holds.
        self._reply: asyncio.Future[tuple[str, bool | str]] = self._loop.create_future()
        self._awaited = 0  # the type of message that replies
        self._readiness: asyncio.Future[bool] | None = None
        self._last_readiness = True
        self._has_is_ready = False
        self._stopping = False
        self._handlers: dict[int, Callable[[Message, memoryview], None]] = {
            **self.requests.handlers,
            messages.LOG: self._logged,
            messages.READINESS: self._readiness_received,
            messages.INITIALIZED: self._initialized,
            messages.COMPLETED: self._completed,
        }

    def __repr__(self) -> str:
        return f"<ModelProcess {self._child!r} {len(self.requests)} in flight>"

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._child.alive

    @property
    def pid(self) -> int:
        """Process id, 0 before it is started."""
        return self._child.pid

    @property
    def has_worked(self) -> bool:
        """Whether it has survived an execution."""
        return self.requests.has_worked

    @property
    def working_since(self) -> int:
        """When it answered last while it has requests, or got them; 0 without any, and while it calls other models."""
        return self.requests.working_since

    def replace(self, why: str) -> None:
        """End the process as if it had died."""
        self._child.kill(why)

    async def start(self, launcher: Launcher, cores: frozenset[int] = frozenset()) -> None:
        """Start the process, on `cores` or any; it holds no model yet. Raises ModelLoadError."""
        try:
            self.requests.open()
        except OSError as error:
            size = self._settings.shm_limit_size
            text = f"no shared memory of {size} bytes for model instance '{self.name}': {error.strerror}"
            if error.errno == errno.EFBIG:
                text += "; raise `ulimit -f` or lower --backend-config=python,shm-limit-byte-size=<bytes>"
            raise ModelLoadError(text, Code.UNAVAILABLE) from error
        try:
            try:
                await self._child.start(launcher, self.requests.descriptors, cores)
            finally:
                self.requests.close_descriptors()
        except ModelLoadError as error:
            self.requests.close(error)
            raise

    def adopt(
        self,
        name: str,
        source: ModelSource,
        metrics: InstanceMetrics,
        on_death: Callable[[Exit], None],
        calls: Callable[[ChildProcess, Executions], OutgoingCalls] | None,
    ) -> None:
        """Become the process of an instance, after `complete`. The arguments are those of the constructor."""
        self.name = self._child.name = name
        self._source = source
        self._on_death = on_death
        self._reply = self._loop.create_future()
        self.requests.adopt(source, metrics, calls)
        self._handlers.update(self.requests.handlers)

    async def initialize(self, plan: InstancePlan) -> None:
        """Import the model and initialize it. Raises ModelLoadError with the cause."""
        source = plan.source
        more = self._adapter.arguments if self._adapter is not None else {}
        arguments = {**initialize_arguments(plan), **more}
        options = self._options()
        options["decoupled"] = source.config.decoupled
        options["outputs"] = {spec.name: spec.datatype for spec in source.config.outputs}
        message = (messages.INITIALIZE, arguments, options)
        error, has_is_ready = await self._request(message, messages.INITIALIZED, "initialize")
        self._has_is_ready = bool(has_is_ready)
        if self.requests.calls is not None:
            self.requests.calls.controls.initializing = False
        if error:
            raise ModelLoadError(f"model instance '{self.name}' failed to initialize: {error}")

    async def complete(self, document: str) -> str:
        """Return a configuration (JSON) completed by `auto_complete_config`. Raises ModelLoadError with the cause."""
        message = (messages.COMPLETE, self._options(), document)
        error, completed = await self._request(message, messages.COMPLETED, "auto_complete_config")
        if error:
            raise ModelLoadError(f"auto_complete_config of model '{self._source.config.name}' failed: {error}")
        return str(completed)

    def execute(self, batch: Batch) -> None:
        """Send a batch to the model, after a change of the log level."""
        level = _log.getEffectiveLevel()
        if level != self._log_level:
            self._log_level = level
            self._child.send((messages.SET_LOG_LEVEL, level))
        self.requests.execute(batch)

    async def check_ready(self) -> bool:
        """Return what `is_ready` of the model returns, True if it has none. A busy model's last answer stays valid."""
        if not self._has_is_ready:
            return True
        if self._readiness is None:
            self._readiness = self._loop.create_future()
            self._child.send((messages.CHECK_READY,))
        try:
            return await asyncio.wait_for(asyncio.shield(self._readiness), _READINESS_TIMEOUT_S)
        except TimeoutError:
            return self.requests.executing and self._last_readiness

    async def stop(self) -> None:
        """Drain the requests, finalize the model and end the process; kill it where either exceeds the time limit."""
        self._stopping = True
        self._child.resume()
        limit = self._settings.stop_timeout_s
        unfinished = "finish what it was executing"
        with suppress(TimeoutError):
            if len(self.requests):
                await asyncio.wait_for(self.requests.drain(), limit)
            self._child.send((messages.FINALIZE,))
            if await self._child.wait(limit):
                return
            unfinished = "finalize"
        self._child.log(logging.WARNING, f"killed: it did not {unfinished} within {limit:g} s")
        await self.kill()

    async def kill(self) -> None:
        """End the process immediately."""
        self._stopping = True
        self._child.kill()
        await self._child.wait(None)

    def _options(self) -> dict[str, Any]:
        source = self._source
        return {
            "directory": str(source.directory),
            "version": str(source.version),
            "filename": code_path(source).name if self._adapter is None else "",
            "adapter": self._adapter.module if self._adapter is not None else "",
            "log_level": self._log_level,
            "kept_size": self._settings.shm_kept_size,
            "busy_poll_ns": self._settings.busy_poll_us * 1000,
        }

    async def _request(self, message: Message, reply: int, what: str) -> tuple[str, bool | str]:
        self._awaited = reply
        self._child.send(message)
        try:
            return await asyncio.wait_for(self._reply, self._settings.start_timeout_s)
        except TimeoutError:
            raise ModelLoadError(
                f"{what} of model instance '{self.name}' took longer than {self._settings.stub_timeout_s:g} s; raise "
                f"--backend-config={self._source.config.backend},stub-timeout-seconds=<s>, or set 0 for no limit"
            ) from None

    def _received(self, message: Message, payload: memoryview) -> None:
        handler = self._handlers.get(message[0])
        if handler is None:
            raise WireError(f"a message of the unknown type {message[0]!r:.40}")
        handler(message, payload)

    def _initialized(self, message: Message, _: memoryview) -> None:
        _, error, has_is_ready = untrusted.items(message, 3, "INITIALIZED")
        self._replied(messages.INITIALIZED, error, untrusted.flag(has_is_ready, "whether the model has is_ready"))

    def _completed(self, message: Message, _: memoryview) -> None:
        _, error, document = untrusted.items(message, 3, "COMPLETED")
        self._replied(messages.COMPLETED, error, untrusted.text(document, "the completed configuration"))

    def _replied(self, kind: int, error: Any, value: bool | str) -> None:
        text = untrusted.message_text(error, "an error")
        if kind != self._awaited or (self._reply.done() and not self._reply.cancelled()):
            raise WireError("a reply to no request")
        if not self._reply.cancelled():  # by a timeout
            self._reply.set_result((text, value))

    def _logged(self, message: Message, _: memoryview) -> None:
        _, level, file, line, text = untrusted.items(message, 5, "LOG")
        untrusted.integer(level, messages.VERBOSE, messages.ERROR, "a level of the log")
        untrusted.integer(line, 0, untrusted.MAX_COUNT, "a line")
        text = untrusted.message_text(text, "a line of the log")
        file = untrusted.name(file, "a file")
        self._child.output.write(level, text, f"{file}:{line}" if line else file)

    def _readiness_received(self, message: Message, _: memoryview) -> None:
        self._last_readiness = untrusted.flag(untrusted.items(message, 2, "READINESS")[1], "whether the model is ready")
        if self._readiness is not None and not self._readiness.done():
            self._readiness.set_result(self._last_readiness)
        self._readiness = None

    def _exited(self, exit_: Exit) -> None:
        if not self._reply.done():
            output = self._child.stderr_tail
            self._reply.set_exception(
                ModelLoadError(
                    f"the process of model instance '{self.name}' {exit_}" + (f":\n{output}" if output else "")
                )
            )
            # Mark it as retrieved: there is no waiter if the process was killed after a timeout.
            self._reply.exception()
        if self._readiness is not None and not self._readiness.done():
            self._readiness.set_result(False)
        self.requests.close(self._request_error(exit_))
        if not self._stopping:
            self._on_death(exit_)

    def _request_error(self, exit_: Exit) -> ConchError:
        if self._stopping:
            return Unavailable(f"model instance '{self.name}' was stopped before the request was finished")
        return ProcessDied(
            f"Stub process '{self.name}' is not healthy. It {exit_} while this request was being executed."
        )
