"""`model_warmup`: requests that every instance answers before its model is ready.

Source: Triton's model configuration, "Model Warmup".
"""

import asyncio
from collections.abc import Callable
from math import prod
from pathlib import Path

import numpy as np

from conch.backends.base import Instance
from conch.backends.batch import Batch
from conch.core.validation import RequestValidator
from conch.errors import ConchError, ModelLoadError
from conch.model_config import ModelConfig, Warmup, WarmupTensor
from conch.request import InferRequest, InferResponse
from conch.tensor import BYTES, ITEM_SIZES, NUMPY_DTYPES, Tensor, pack_bytes


async def warm_up(instance: Instance) -> None:
    """Send the configured requests to one started instance. Raises ModelLoadError if one of them is not answered."""
    source = instance.plan.source
    validator = RequestValidator(source.config)
    for warmup in source.config.warmups:
        for _ in range(max(warmup.count, 1)):
            try:
                request = _request(source.config, warmup, source.directory)
                validator.check(request)
                await _executed(instance, request)
            except ConchError as error:
                raise ModelLoadError(f"failed to run warmup sample '{warmup.name}': {error.message}") from error


async def _executed(instance: Instance, request: InferRequest) -> None:
    execution = _Execution(request)
    released = asyncio.Event()
    instance.execute(Batch([execution], lambda _: released.set()))
    await released.wait()
    await execution.finished


class _Execution:
    """An execution whose answer nobody reads."""

    cancelled = False

    def __init__(self, request: InferRequest) -> None:
        self.request = request
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_cancel(self, notify: Callable[[], None]) -> None:
        """Nobody cancels a warm-up."""

    def send(self, response: InferResponse) -> None:
        """Nobody reads its responses."""

    def finish(self, answer: InferResponse | ConchError | None) -> None:
        if self.finished.done():
            return
        if isinstance(answer, ConchError):
            self.finished.set_exception(answer)
        else:
            self.finished.set_result(None)


def _request(config: ModelConfig, warmup: Warmup, directory: Path) -> InferRequest:
    batch_size = warmup.batch_size if config.max_batch_size > 0 else 0
    return InferRequest(config.name, [_tensor(spec, batch_size, directory) for spec in warmup.inputs])


def _tensor(spec: WarmupTensor, batch_size: int, directory: Path) -> Tensor:
    shape = (batch_size, *spec.dims) if batch_size else spec.dims
    return Tensor(spec.name, spec.datatype, shape, _data(spec, directory) * max(batch_size, 1))


def _data(spec: WarmupTensor, directory: Path) -> bytes:
    """Return the wire bytes of one item."""
    elements = prod(spec.dims)
    if spec.source not in ("zero", "random"):
        path = directory / "warmup" / spec.source
        try:
            return path.read_bytes()
        except OSError as error:
            raise ModelLoadError(
                f"cannot read the data of input '{spec.name}' from {path}: {error.strerror}"
            ) from error
    if spec.datatype == BYTES:
        return pack_bytes([b""] * elements)
    size = ITEM_SIZES[spec.datatype] * elements
    if spec.source == "zero":
        return bytes(size)
    dtype = NUMPY_DTYPES.get(spec.datatype)
    generator = np.random.default_rng(0)
    if dtype is not None and dtype.kind == "f":
        return generator.random(elements).astype(dtype).tobytes()
    if spec.datatype in ("BOOL", "BF16"):
        return bytes(generator.integers(0, 2, size, dtype=np.uint8))
    return generator.bytes(size)
