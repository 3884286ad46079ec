# Compiled by mypyc in wheels.
"""Warm-up of instances (`model_warmup`): requests that each instance executes before its model is ready.

Source: Triton's model configuration, "Model Warmup".
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Final

import numpy as np

from conch.base.errors import ConchError, InvalidRequest, ModelLoadError
from conch.base.files.confined import read_confined
from conch.domain.config.size_limits import MAX_GENERATED_BYTES
from conch.domain.model_config import ModelConfig, Warmup, WarmupTensor
from conch.domain.request import InferRequest, InferResponse
from conch.domain.tensor import BYTES, NUMPY_DTYPES, Tensor, byte_size
from conch.server.backends.base import Instance
from conch.server.backends.batch import Batch, Execution
from conch.server.core.validation import RequestValidator, Reshaper

_MAX_REQUESTS_PER_TURN: Final = 100  # of the event loop


async def warm_up(instance: Instance) -> None:
    """Send the configured requests to one started instance. Raises ModelLoadError if one of them fails.

    A sample of batch size n is n requests of one item each, executed together.
    """
    source = instance.plan.source
    config = _with_optional_controls(source.config)
    for warmup in config.warmups:
        try:
            tensors = await asyncio.to_thread(_tensors, config, warmup, source.directory)
            for _ in range(max(warmup.count, 1)):
                await _execute(instance, await _requests(config, tensors, warmup.batch_size))
        except ConchError as error:
            raise ModelLoadError(f"failed to run warmup sample '{warmup.name}': {error.message}", error.code) from error


def _with_optional_controls(config: ModelConfig) -> ModelConfig:
    """Return the configuration with optional controls and states: as in Triton, samples of sequences may omit them."""
    batching = config.sequence_batching
    if batching is None:
        return config
    names = {control.name for control in batching.controls} | {state.input_name for state in batching.states}
    inputs = tuple(replace(spec, optional=spec.optional or spec.name in names) for spec in config.inputs)
    return replace(config, inputs=inputs)


async def _requests(config: ModelConfig, tensors: Sequence[Tensor], number: int) -> list[InferRequest]:
    """Return the requests of a batch without blocking the event loop."""
    requests: list[InferRequest] = []
    while len(requests) < number:
        missing = number - len(requests)
        requests += [_request(config, tensors) for _ in range(min(_MAX_REQUESTS_PER_TURN, missing))]
        await asyncio.sleep(0)
    return requests


async def _execute(instance: Instance, requests: Sequence[InferRequest]) -> None:
    executions = [_Execution(request) for request in requests]
    released = asyncio.Event()
    instance.execute(Batch(executions, lambda _: released.set()))
    await released.wait()
    await asyncio.gather(*(execution.finished for execution in executions))


class _Execution(Execution):
    """An execution whose response is dropped."""

    def __init__(self, request: InferRequest) -> None:
        super().__init__(request)
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_cancel(self, notify: Callable[[], None]) -> None:
        """Ignore the callback: a warm-up is not cancelled."""

    def send(self, response: InferResponse | ConchError) -> None:
        """Drop a response; an error fails the warm-up."""
        if isinstance(response, ConchError):
            self.finish(response)

    def reschedule(self) -> None:
        """End the execution: one turn of an iterative model is enough."""
        self.finish(None)

    def finish(self, answer: InferResponse | ConchError | None) -> None:
        if self.finished.done():
            return
        if isinstance(answer, ConchError):
            self.finished.set_exception(answer)
        else:
            self.finished.set_result(None)


def _request(config: ModelConfig, tensors: Sequence[Tensor]) -> InferRequest:
    """Return a request as an instance gets it: validated, and with the backend's shapes."""
    request = InferRequest(config.name, list(tensors))
    RequestValidator(config).check(request)
    Reshaper(config).request(request)
    return request


def _tensors(config: ModelConfig, warmup: Warmup, directory: Path) -> list[Tensor]:
    max_batch_size = max(config.max_batch_size, 1)
    if warmup.batch_size > max_batch_size:
        raise InvalidRequest(f"batch size {warmup.batch_size} for '{config.name}', max allowed is {max_batch_size}")
    leading = (1,) if config.max_batch_size > 0 else ()
    return [Tensor(spec.name, spec.datatype, (*leading, *spec.dims), _data(spec, directory)) for spec in warmup.inputs]


def _data(spec: WarmupTensor, directory: Path) -> bytes:
    """Return the wire bytes of one item."""
    if spec.filename:
        return _file(spec, directory / "warmup")
    if spec.datatype == BYTES:
        return bytes(4 * prod(spec.dims))  # the lengths of empty elements
    size = byte_size(spec.datatype, spec.dims)
    if not spec.random:
        return bytes(size)
    dtype = NUMPY_DTYPES.get(spec.datatype)
    generator = np.random.default_rng(0)
    if dtype is not None and dtype.kind == "f":
        return generator.random(prod(spec.dims), np.float32).astype(dtype).tobytes()
    if spec.datatype in ("BOOL", "BF16"):
        return bytes(generator.integers(0, 2, size, dtype=np.uint8))
    return generator.bytes(size)


def _file(spec: WarmupTensor, directory: Path) -> bytes:
    """Return the bytes of a file. It may hold more than one item needs, as in Triton, but not less."""
    size = MAX_GENERATED_BYTES if spec.datatype == BYTES else byte_size(spec.datatype, spec.dims)
    field, location, max_bytes = "input_data_file", f"input '{spec.name}'", MAX_GENERATED_BYTES
    try:
        data = read_confined(directory, spec.filename, field, location, at_most=size, max_bytes=max_bytes)
    except OSError as error:
        raise ModelLoadError(
            f"failed to open the file for read {directory / spec.filename}: {error.strerror} (data of {location})"
        ) from error
    if spec.datatype != BYTES and len(data) < size:
        raise InvalidRequest(
            f"warmup setting expects {size} bytes, but the data provided from {directory / spec.filename} only has "
            f"{len(data)}"
        )
    return data
