"""Import a model's class and call its methods: `initialize`, `execute`, `is_ready`, `finalize`."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import sys
import threading
from contextlib import suppress
from time import monotonic_ns
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple, Union

from ..ipc.cpu_meter import CpuMeter
from ..ipc.wire import Message
from . import messages
from .api.errors import TritonError, TritonModelException
from .api.request import InferenceRequest
from .api.responses import InferenceResponse, Responder, ResponseWriter
from .bls import PendingCalls, background
from .failure import describe, place_of, traceback_of
from .source_import import add_source_folder

Outcome = Tuple[Responder, Union[InferenceResponse, TritonError, None]]

READINESS_TIMEOUT_S = 5.0
# After a longer execution, messages that arrived meanwhile are read before the next one.
_LONG_NS = 1_000_000

# Triton's words, with its typo.
RESPONSE_TO_RESCHEDULED = (
    "Expected a None object in the execute function return list for reschduled request, found type '{}'."
)


def load_class(model_directory: str, version: str, filename: str) -> Any:
    """Import `<version>/<filename>` as module `<version>.<stem>` and return its `TritonPythonModel`.

    Adds the version's and the model's directory to `sys.path`, so that models can import modules beside them. Raises
    what the import raises, AttributeError for a missing class.
    """
    add_source_folder(model_directory)
    for directory in (os.path.join(model_directory, version), model_directory):  # noqa: PTH118
        if directory not in sys.path:
            sys.path.append(directory)
    name = "{}.{}".format(version, filename[: -len(".py")].replace("/", "."))
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != "conch":
            raise
        from .app.endpoints import provide_declarations

        provide_declarations()
        module = importlib.import_module(name)
    model = getattr(module, "TritonPythonModel", None)
    if model is None:
        from .app.function_model import in_module  # for such files only

        model = in_module(module, model_directory)
    if model is None:
        raise AttributeError("'{}' defines no class TritonPythonModel".format(filename))
    return model


class ModelHost:
    """One instance of a model in this process."""

    def __init__(self, writer: ResponseWriter, calls: PendingCalls, instance_name: str) -> None:
        self._writer = writer
        self._calls = calls
        self._channel = writer.channel
        self._name = instance_name
        self._model: Any = None
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._background: Set[Any] = set()
        self._meter: Optional[CpuMeter] = None  # of the thread that executes
        self._last_ns = 0  # how long the last batch took
        self._keeps_slots = False  # whether a request's index in the batch identifies its sequence (direct strategy)

    @property
    def has_is_ready(self) -> bool:
        """Whether the model has a method `is_ready`."""
        return callable(getattr(self._model, "is_ready", None))

    def initialize(self, model_class: Any, arguments: Dict[str, str]) -> None:
        """Create and initialize the model. Raises what the model raises, TypeError if it has no `execute`."""
        sequences = json.loads(arguments["model_config"]).get("sequence_batching")
        self._keeps_slots = sequences is not None and "oldest" not in sequences
        self._model = model_class()
        if not callable(getattr(self._model, "execute", None)):
            raise TypeError("class TritonPythonModel has no method 'execute'")
        if hasattr(self._model, "initialize"):
            self._model.initialize(arguments)
        # Now, so that what the process holds does not change with its first batch.
        self._meter = CpuMeter()

    def execute(self, message: Message, payload: memoryview) -> None:
        """Execute one batch and send its responses."""
        if message[1]:
            self._channel.outputs.free(message[1])
        if self._last_ns > _LONG_NS:
            self._channel.drain()  # requests of this batch may have been cancelled meanwhile
        # A copy, as arrays must be writable and aligned, and must outlive the frame.
        data = memoryview(bytearray(payload))
        requests = [InferenceRequest.from_wire(self._writer, request, data) for request in message[2]]
        responders = [request._require_responder() for request in requests]
        self._calls.executing = tuple([responder.key for responder in responders])
        meter = self._meter
        assert meter is not None
        input_done = self._writer.input_done = monotonic_ns()
        outcomes = self._run(requests, responders)
        infer_done = monotonic_ns()
        self._last_ns = infer_done - input_done
        self._calls.executing = ()
        # Inputs and requests that the model has not kept are released here, which `finish` sends with the answers.
        del requests, responders, data
        self._writer.finish(outcomes, input_done, infer_done, meter.used(self._last_ns))

    def is_ready(self) -> bool:
        """Call the model's `is_ready`. False also after an exception, a timeout or a result other than a bool."""
        try:
            answer = self._model.is_ready()
            if inspect.iscoroutine(answer):
                answer = self._await(answer, READINESS_TIMEOUT_S)
        except Exception as error:
            self._log_error("is_ready of model instance '{}' failed: {}".format(self._name, describe(error)), error)
            return False
        return answer is True

    def finalize(self) -> None:
        """Call the model's `finalize`, if it has one, and log its exceptions."""
        self._calls.phase = "finalize"
        try:
            if hasattr(self._model, "finalize"):
                self._model.finalize()
        except Exception as error:
            self._log_error(
                "finalize of model instance '{}' failed:\n{}".format(self._name, traceback_of(error)), error
            )

    def _run(self, requests: List[InferenceRequest], responders: List[Responder]) -> List[Outcome]:
        if self._channel.cancelled and not self._keeps_slots:
            return self._run_uncancelled(requests, responders)
        return self._run_batch(requests, responders)

    def _run_uncancelled(self, requests: List[InferenceRequest], responders: List[Responder]) -> List[Outcome]:
        """Execute a batch without the requests that were cancelled while it waited."""
        cancelled = self._channel.cancelled
        error = TritonError("the request was cancelled before it was executed", TritonError.CANCELLED)
        outcomes: List[Outcome] = []
        live: List[Tuple[InferenceRequest, Responder]] = []
        for request, responder in zip(requests, responders):
            if responder.key in cancelled:
                outcomes.append((responder, error))
            else:
                live.append((request, responder))
        if live:
            outcomes += self._run_batch([request for request, _ in live], [responder for _, responder in live])
        return outcomes

    def _run_batch(self, requests: List[InferenceRequest], responders: List[Responder]) -> List[Outcome]:
        try:
            returned = self._model.execute(requests)
            if inspect.iscoroutine(returned):
                returned = self._await_execute(returned, responders)
            return self._outcomes(responders, returned)
        except BaseException as error:  # SystemExit, too: only the server may end this process
            self._log_error("execute of model instance '{}' failed:\n{}".format(self._name, traceback_of(error)), error)
            return self._all_failed(responders, describe(error))

    def _outcomes(self, responders: Sequence[Responder], returned: Any) -> List[Outcome]:
        if self._writer.decoupled:
            if returned is not None:
                return self._all_failed(
                    responders,
                    "Python model '{}' is using the decoupled mode and the execute function must return None.".format(
                        self._name
                    ),
                )
            return [(responder, None) for responder in responders if responder.reschedule]
        if returned is None:
            returned = [None] * len(responders)
        elif not isinstance(returned, list):
            return self._all_failed(
                responders,
                "Expected a list in the execute return, found type '{}'.".format(type(returned)),
            )
        if len(returned) != len(responders):
            text = (
                "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
                "InferenceRequest(s) size is:{}, and InferenceResponse(s) size is:{}\n"
            )
            return self._all_failed(responders, text.format(len(responders), len(returned)))
        outcomes: List[Outcome] = []
        for responder, response in zip(responders, returned):
            if responder.reschedule:
                error = None if response is None else self._failed(RESPONSE_TO_RESCHEDULED.format(type(response)))
                outcomes.append((responder, error))
            elif isinstance(response, InferenceResponse):
                outcomes.append((responder, response))
            elif response is not None:
                text = "Expected an 'InferenceResponse' object in the execute function return list, found type '{}'."
                outcomes.append((responder, self._failed(text.format(type(response)))))
            elif not responder.sender_taken:
                text = "execute returned None for a request whose response sender the model has not taken."
                outcomes.append((responder, self._failed(text)))
        return outcomes

    def _all_failed(self, responders: Sequence[Responder], text: str) -> List[Outcome]:
        error = self._failed(text)
        return [(responder, error) for responder in responders]

    def _failed(self, text: str) -> TritonError:
        return TritonError("Failed to process the request(s) for model '{}', message: {}".format(self._name, text))

    def _await_execute(self, coroutine: Any, responders: List[Responder]) -> Any:
        if not self._writer.decoupled:
            return self._await(coroutine)
        # It continues in the background, so the next batch may overlap. Its requests end by their senders or with it.
        running = asyncio.run_coroutine_threadsafe(self._in_background(coroutine, responders), self._event_loop())
        self._background.add(running)  # the event loop only has weak references to tasks
        running.add_done_callback(self._background.discard)
        return None

    async def _in_background(self, coroutine: Any, responders: List[Responder]) -> None:
        background.set(tuple([responder.key for responder in responders]))
        try:
            await coroutine
        except BaseException as error:
            self._log_error("execute of model instance '{}' failed:\n{}".format(self._name, traceback_of(error)), error)
            failure = InferenceResponse(error=self._failed(describe(error)))
            for responder in responders:
                with suppress(TritonModelException):  # closed already
                    responder.send(failure, final=True)

    def _await(self, coroutine: Any, timeout_s: Optional[float] = None) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._event_loop()).result(timeout_s)

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            # In a separate thread, so that tasks which a coroutine leaves behind continue between batches.
            threading.Thread(target=self._loop.run_forever, name="conch-asyncio", daemon=True).start()
        return self._loop

    def _log_error(self, text: str, error: BaseException) -> None:
        file, line = place_of(error)
        self._channel.send((messages.LOG, messages.ERROR, file, line, text))
