"""`backend: "identity"`: copies inputs to outputs in the order of the configuration, to try clients, and for tests.

It runs on the event loop. Like Triton's identity backend it has the parameter `execute_delay_ms`.
"""

import asyncio
from collections.abc import Mapping
from time import monotonic_ns
from typing import Any

from conch.base.errors import ModelLoadError
from conch.domain.request import InferResponse
from conch.domain.tensor import Tensor
from conch.server.backends.base import Backend, Instance, InstancePlan, ModelSource
from conch.server.backends.batch import Batch, Execution

# Of a delay in milliseconds.
_MAX_DELAY_DIGITS = 9


class IdentityBackend(Backend):
    """`backend: "identity"`."""

    name = "identity"
    can_use_gpus = False
    default_model_filename = ""

    async def complete(self, source: ModelSource) -> Mapping[str, Any]:
        """Return the document unchanged: there is no model file."""
        return source.config.document

    def instance(self, plan: InstancePlan) -> Instance:
        return IdentityInstance(plan)


class IdentityInstance(Instance):
    """Returns the inputs of a request as its outputs."""

    def __init__(self, plan: InstancePlan) -> None:
        self.plan = plan
        self._ready = False
        self._delay_s = 0.0
        config = plan.source.config
        self._names = {spec.name: copy.name for spec, copy in zip(config.inputs, config.outputs, strict=False)}

    @property
    def ready(self) -> bool:
        return self._ready

    async def start(self) -> None:
        """Read the parameters. Raises ModelLoadError for an invalid delay or different dtypes of input and output."""
        config = self.plan.source.config
        for spec, copy in zip(config.inputs, config.outputs, strict=False):
            if spec.datatype != copy.datatype:
                raise ModelLoadError(
                    f"identity model '{config.name}': output '{copy.name}' is {copy.datatype}, "
                    f"but input '{spec.name}', which it copies, is {spec.datatype}"
                )
        text = config.parameters.get("execute_delay_ms", "0").strip()
        if not text.isdecimal() or len(text) > _MAX_DELAY_DIGITS:
            raise ModelLoadError(
                f"parameter 'execute_delay_ms' must be a whole number, got '{text[:100]}'; "
                f"the limit is {_MAX_DELAY_DIGITS} digits"
            )
        self._delay_s = int(text) / 1000
        self._ready = True

    def execute(self, batch: Batch) -> None:
        loop = asyncio.get_running_loop()
        if self._delay_s:
            loop.call_later(self._delay_s, self._answer, batch)
        else:
            loop.call_soon(self._answer, batch)

    async def stop(self) -> None:
        self._ready = False

    def _answer(self, batch: Batch) -> None:
        batch.input_done = batch.infer_done = monotonic_ns()
        for execution in batch.executions:
            execution.finish(self._response(execution))
        batch.release()

    def _response(self, execution: Execution) -> InferResponse:
        request, source = execution.request, self.plan.source
        outputs = [
            Tensor(self._names[tensor.name], tensor.datatype, tensor.shape, tensor.data)
            for tensor in request.inputs
            if tensor.name in self._names and (not request.outputs or self._names[tensor.name] in request.outputs)
        ]
        return InferResponse(source.config.name, source.version, outputs, id=request.id)


backend = IdentityBackend
