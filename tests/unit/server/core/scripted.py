"""Configurations, requests, and an instance that tests control step by step."""

from pathlib import Path
from time import monotonic_ns

import numpy as np

from conch.base.errors import BackendError
from conch.domain.model_config import DynamicBatching, InstanceKind, ModelConfig, TensorSpec
from conch.domain.request import InferRequest, InferResponse
from conch.domain.tensor import Tensor
from conch.server.backends.base import Instance, InstancePlan, ModelSource
from conch.server.backends.batch import Batch


def config(name: str = "m", *, max_batch_size: int = 0, dims: tuple[int, ...] = (2,), **fields: object) -> ModelConfig:
    """A model with one FP32 input and output."""
    spec = TensorSpec("IN", "FP32", dims)
    out = TensorSpec("OUT", "FP32", dims)
    fields.setdefault("inputs", (spec,))
    fields.setdefault("outputs", (out,))
    return ModelConfig(name=name, backend="scripted", platform="", max_batch_size=max_batch_size, **fields)


def dynamic(max_batch_size: int = 8, **fields: object) -> ModelConfig:
    """A model with dynamic batching."""
    return config(max_batch_size=max_batch_size, dynamic_batching=DynamicBatching(**fields))


def request(*shape: int, name: str = "m", **fields: object) -> InferRequest:
    """A request of zeros."""
    shape = shape or (2,)
    return InferRequest(name, [Tensor.from_numpy("IN", np.zeros(shape, np.float32))], **fields)


class ScriptedInstance(Instance):
    """Keeps what it is given in `batches`; `answer` and `fail` end the oldest."""

    def __init__(self) -> None:
        source = ModelSource(config(), 1, Path("m"), {})
        self.plan = InstancePlan(source, "m_0", InstanceKind.CPU, 0, siblings=1)
        self.batches: list[Batch] = []
        self.is_ready = False
        self.stopped = False
        self.holds_ahead = 0
        self.holds_when_crowded = 0

    def ahead(self, *, crowded: bool) -> int:
        return max(self.holds_ahead, self.holds_when_crowded) if crowded else self.holds_ahead

    @property
    def ready(self) -> bool:
        return self.is_ready

    async def start(self) -> None:
        self.is_ready = True

    def execute(self, batch: Batch) -> None:
        assert self.is_ready
        self.batches.append(batch)

    async def stop(self) -> None:
        self.stopped = True
        self.is_ready = False

    def answer(self, *, release_first: bool = False) -> None:
        """Echo the oldest batch; release it before, as the processes of Python models do, or after that."""
        batch = self.batches.pop(0)
        batch.input_done = batch.infer_done = monotonic_ns()
        if release_first:
            batch.release()
        for execution in batch.executions:
            sent = execution.request
            outputs = [Tensor("OUT", t.datatype, t.shape, t.data) for t in sent.inputs]
            execution.finish(InferResponse(sent.model_name, 1, outputs, id=sent.id))
        if not release_first:
            batch.release()

    def fail(self, text: str = "boom") -> None:
        """End the oldest batch with an error."""
        batch = self.batches.pop(0)
        batch.fail(BackendError(text))
        batch.release()

    def die(self) -> None:
        """Break down: the batch fails, the instance is not ready."""
        self.is_ready = False
        if self.batches:
            self.fail("died")
        unbegun, self.batches = self.batches, []
        for batch in reversed(unbegun):
            batch.give_back()
        self.on_ready_change()

    def recover(self) -> None:
        """Become ready again."""
        self.is_ready = True
        self.on_ready_change()


class Caller:
    """A respond callback that records responses."""

    def __init__(self) -> None:
        self.answers: list[object] = []
        self.finals = 0

    def __call__(self, answer: object, final: bool) -> None:
        assert self.finals == 0, "called again after the end"
        self.finals += final
        if answer is not None:
            self.answers.append(answer)

    @property
    def answer(self) -> object:
        assert self.finals == 1
        return self.answers[-1]
