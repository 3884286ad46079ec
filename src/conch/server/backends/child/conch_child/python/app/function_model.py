"""Run a declared function or class as a `TritonPythonModel`."""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
import threading
import traceback
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from ..api.errors import TritonError
from ..api.responses import RESPONSE_COMPLETE_FINAL, InferenceResponse
from ..api.tensor import Tensor
from ..failure import describe
from .declare import InvalidInput
from .endpoints import DeclaredModel, declared_in, endpoints_of, import_app
from .kinds import TensorKind

Reply = Callable[[InferenceResponse], None]


def model_class(endpoint: DeclaredModel) -> Any:
    """Return the `TritonPythonModel` of an endpoint."""
    return type("TritonPythonModel", (FunctionModel,), {"endpoint": endpoint})


def from_file(path: str, name: str) -> Any:
    """Import a file and return the `TritonPythonModel` of one of its models. Raises what the import raises."""
    return model_class(endpoints_of(import_app(path))[name])


def in_module(module: Any, model_directory: str) -> Any:
    """Return the `TritonPythonModel` of a `model.py` with declared models, None if it declares none.

    The folder names one of several. Raises DeclarationError.
    """
    if not declared_in(module):
        return None
    endpoints = endpoints_of(module)
    name = os.path.basename(model_directory.rstrip("/"))  # noqa: PTH119
    return model_class(endpoints[name] if name in endpoints else next(iter(endpoints.values())))


class FunctionModel:
    """One instance of an endpoint."""

    endpoint: DeclaredModel

    @classmethod
    def auto_complete_config(cls, config: Any) -> Any:
        """Fill in what config.pbtxt leaves out."""
        document = config.as_dict()
        for key, value in cls.endpoint.config().items():
            if not document.get(key):
                document[key] = value
        return config

    def initialize(self, args: Dict[str, str]) -> None:
        """Create the object of a class and call its `setup`, with the device if it takes one."""
        endpoint = self.endpoint
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._slots = threading.BoundedSemaphore(max(1, int(endpoint.declaration["concurrency"])))
        self._function: Any = endpoint.function
        self._object: Any = None
        if endpoint.owner is None:
            return
        self._object = endpoint.owner()
        if hasattr(self._object, "setup"):
            device = "cuda:" + args["model_instance_device_id"] if args["model_instance_kind"] == "GPU" else "cpu"
            self._object.setup(*[device][: len(inspect.signature(self._object.setup).parameters)])
        self._function = getattr(self._object, endpoint.function.__name__)

    def finalize(self) -> None:
        """Call `teardown` of the object, if it has one."""
        if hasattr(self._object, "teardown"):
            self._object.teardown()

    def execute(self, requests: List[Any]) -> Any:
        """Run the function for requests. Async functions and generators respond by senders, later."""
        endpoint = self.endpoint
        if endpoint.streams:
            for request in requests:
                self._start(self._stream_async(request)) if endpoint.is_async else self._stream(request)
            return None
        groups = self._groups(requests) if endpoint.batch else [[request] for request in requests]
        if endpoint.is_async:
            for group in groups:
                self._start(self._respond_async(group, [_replier(request) for request in group]))
            return None
        responses: Dict[int, InferenceResponse] = {}
        for group in groups:
            for request, response in zip(group, self._responses(group)):
                responses[id(request)] = response
        return [responses[id(request)] for request in requests]

    # ── one batch ──

    def _groups(self, requests: Sequence[Any]) -> List[List[Any]]:
        """Return the requests by the inputs that they have: optional ones may be missing."""
        groups: Dict[Tuple[str, ...], List[Any]] = {}
        for request in requests:
            groups.setdefault(tuple(sorted(tensor.name() for tensor in request.inputs())), []).append(request)
        return list(groups.values())

    def _responses(self, requests: List[Any]) -> List[InferenceResponse]:
        """Run requests together; if that fails, separately, so that only invalid ones fail."""
        try:
            values, sizes = self._read(requests)
            return self._write(self._call(values), sizes)
        except Exception as error:
            if len(requests) == 1:
                return [_failure(error)]
        return [self._responses([request])[0] for request in requests]

    async def _responses_async(self, requests: List[Any]) -> List[InferenceResponse]:
        """As `_responses`, for an async function."""
        try:
            values, sizes = self._read(requests)
            return self._write(await self._call(values), sizes)
        except Exception as error:
            if len(requests) == 1:
                return [_failure(error)]
        return [(await self._responses_async([request]))[0] for request in requests]

    async def _respond_async(self, requests: List[Any], replies: List[Reply]) -> None:
        for reply, response in zip(replies, await self._responses_async(requests)):
            reply(response)

    def _call(self, values: Any) -> Any:
        return self._function(*values) if isinstance(values, tuple) else self._function(**values)

    def _read(self, requests: List[Any]) -> Tuple[Any, List[int]]:
        """Return the arguments of the function, by name or as a tuple, and the number of items of each request."""
        endpoint = self.endpoint
        arrays = [{tensor.name(): tensor.as_numpy() for tensor in request.inputs()} for request in requests]
        if not endpoint.batch:
            values = {name: self._value(name, array) for name, array in arrays[0].items()}
            return ((self._object.preprocess(**values),) if endpoint.preprocesses else values), [1]
        sizes = [len(next(iter(request.values()))) for request in arrays]
        if endpoint.preprocesses:
            items = [
                self._object.preprocess(**{name: self._value(name, array[index]) for name, array in request.items()})
                for request, size in zip(arrays, sizes)
                for index in range(size)
            ]
            return (items,), sizes
        columns = {name: _joined([request[name] for request in arrays]) for name in arrays[0]}
        return {name: self._value(name, array) for name, array in columns.items()}, sizes

    def _value(self, name: str, array: Any) -> Any:
        try:
            return self.endpoint.inputs[name].read(array)
        except InvalidInput as error:
            raise InvalidInput("input '{}': {}".format(name, error)) from None

    def _write(self, result: Any, sizes: List[int]) -> List[InferenceResponse]:
        endpoint = self.endpoint
        if not endpoint.batch:
            if endpoint.postprocesses:
                result = self._object.postprocess(result)
            values = self._outputs(result)
            return [InferenceResponse([self._tensor(name, values[name]) for name in endpoint.outputs])]
        if endpoint.postprocesses:
            _check_count("result", result, sum(sizes))
            items = [self._outputs(self._object.postprocess(item)) for item in result]
            columns = {
                name: np.stack([_written(name, kind, item[name]) for item in items])
                for name, kind in endpoint.outputs.items()
            }
        else:
            columns = {}
            for name, value in self._outputs(result).items():
                _check_count("output '{}'".format(name), value, sum(sizes))
                kind = endpoint.outputs[name]
                if kind.item:
                    columns[name] = np.stack([_written(name, kind.item, item) for item in value])
                else:
                    columns[name] = _written(name, kind, value)
        ends = np.cumsum(sizes)[:-1]
        parts = {name: np.split(column, ends) for name, column in columns.items()}
        return [
            InferenceResponse([self._tensor(name, column[index], 1) for name, column in parts.items()])
            for index in range(len(sizes))
        ]

    def _outputs(self, result: Any) -> Dict[str, Any]:
        """Return the values of the outputs by name. Raises TypeError for a result of another form."""
        endpoint = self.endpoint
        if endpoint.single_output:
            return dict.fromkeys(endpoint.outputs, result)
        if isinstance(result, tuple):
            values = dict(zip(endpoint.outputs, result))
        elif isinstance(result, dict):
            values = result
        else:
            values = {name: getattr(result, name) for name in endpoint.outputs if hasattr(result, name)}
        missing = [name for name in endpoint.outputs if name not in values]
        if missing:
            raise TypeError(
                "'{}' returned no {}: its annotation has the outputs {}".format(
                    endpoint.name, ", ".join(missing), ", ".join(endpoint.outputs)
                )
            )
        return {name: values[name] for name in endpoint.outputs}

    def _tensor(self, name: str, value: Any, batch_dimensions: int = 0) -> Tensor:
        kind: TensorKind = self.endpoint.outputs[name]
        array = value if batch_dimensions else _written(name, kind, value)
        if array.ndim == 0:
            array = array.reshape(1)
        shape = kind.shape
        if array.ndim != len(shape) + batch_dimensions:
            raise TypeError(
                "output '{0}' has the shape {1}, but the annotation of '{2}' says {3}: annotate the result with "
                'Annotated[np.ndarray, conch.Tensor("{4}", {5})]'.format(
                    name,
                    list(array.shape),
                    self.endpoint.name,
                    [-1] * batch_dimensions + shape,
                    kind.datatype,
                    [-1] * max(1, array.ndim - batch_dimensions),
                )
            )
        return Tensor(name, array)

    # ── streams ──

    def _stream(self, request: Any) -> None:
        sender = request.get_response_sender()
        try:
            values, _ = self._read([request])
            generator = self._call(values)
            for value in generator:
                if sender.is_cancelled():
                    generator.close()
                    break
                sender.send(self._write(value, [1])[0])
        except Exception as error:
            sender.send(_failure(error))
        sender.send(flags=RESPONSE_COMPLETE_FINAL)

    async def _stream_async(self, request: Any) -> None:
        sender = request.get_response_sender()
        try:
            values, _ = self._read([request])
            generator = self._call(values)
            async for value in generator:
                if sender.is_cancelled():
                    await generator.aclose()
                    break
                sender.send(self._write(value, [1])[0])
        except Exception as error:
            sender.send(_failure(error))
        sender.send(flags=RESPONSE_COMPLETE_FINAL)

    # ── async functions ──

    def _start(self, coroutine: Any) -> None:
        """Run a coroutine in the event loop's thread. Waits while `concurrency` of them run."""
        self._slots.acquire()
        running = asyncio.run_coroutine_threadsafe(coroutine, self._event_loop())
        running.add_done_callback(lambda _: self._slots.release())

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="conch-asyncio", daemon=True).start()
        return self._loop


def _replier(request: Any) -> Reply:
    sender = request.get_response_sender()
    return lambda response: sender.send(response, RESPONSE_COMPLETE_FINAL)


def _joined(arrays: List[Any]) -> Any:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _written(name: str, kind: TensorKind, value: Any) -> Any:
    """Return the array of an output's value. Raises TypeError for a value that its annotation excludes."""
    if value is None and not kind.is_json:  # NumPy would make NaN of it
        raise TypeError("output '{}' is None: the function returned no value".format(name))
    try:
        return kind.write(value)
    except (TypeError, ValueError) as error:
        raise TypeError("output '{}': {}".format(name, error)) from None


def _check_count(what: str, values: Any, count: int) -> None:
    if values is None:
        raise TypeError("{} is None: the function returned no value".format(what))
    if len(values) != count:
        raise TypeError("{} has {} items for a batch of {}: a batch needs one each".format(what, len(values), count))


def _failure(error: Exception) -> InferenceResponse:
    """Return the response for an exception; those that are not the client's mistake are logged."""
    # By name: the model's `conch` may be another copy of this package.
    if any(base.__name__ == InvalidInput.__name__ for base in type(error).__mro__):
        return InferenceResponse(error=TritonError(str(error), TritonError.INVALID_ARG))
    traceback.print_exception(type(error), error, error.__traceback__, file=sys.stderr)
    return InferenceResponse(error=TritonError(describe(error)))
