"""Sequence models with scripted instances, and requests to them."""

import asyncio
from pathlib import Path

from conch.domain.model_config import ControlKind, ModelConfig, SequenceBatching, SequenceControl
from conch.domain.request import SEQUENCE_END, SEQUENCE_START
from conch.server.backends.batch import Batch, Execution
from conch.server.core.sequences.sequence_model import SequenceModel
from tests.unit.server.core.scripted import Caller, ScriptedInstance, config, request

FALSE, TRUE = b"\0\0\0\0", b"\1\0\0\0"


CONTROLS = (
    SequenceControl(ControlKind.START, "START", "INT32", FALSE, TRUE),
    SequenceControl(ControlKind.END, "END", "INT32", FALSE, TRUE),
    SequenceControl(ControlKind.READY, "READY", "INT32", FALSE, TRUE),
    SequenceControl(ControlKind.CORRID, "ID", "UINT64"),
)


def sequences(max_batch_size: int = 4, **fields: object) -> ModelConfig:
    fields.setdefault("oldest", True)
    fields.setdefault("controls", CONTROLS)
    fields.setdefault("max_idle_us", 3_600_000_000)
    return config(max_batch_size=max_batch_size, sequence_batching=SequenceBatching(**fields))


async def started(
    model_config: ModelConfig, instances: int = 1, **options: object
) -> tuple[SequenceModel, list[ScriptedInstance]]:
    workers = [ScriptedInstance() for _ in range(instances)]
    model = SequenceModel(model_config, 1, {}, workers, asyncio.get_running_loop(), Path("m"), **options)
    await model.start()
    return model, workers


def ask(model: SequenceModel, key: int | str, *, start: bool = False, end: bool = False, **fields: object) -> Caller:
    """Submit one request; the caller has it as `admitted`."""
    caller = Caller()
    flags = start * SEQUENCE_START + end * SEQUENCE_END
    caller.admitted = model.submit(request(1, 2, correlation_id=key, flags=flags, **fields), caller)
    return caller


def ids(batch: Batch) -> list[int | str]:
    return [execution.request.correlation_id for execution in batch.executions]


def value(execution: Execution, name: str) -> object:
    tensor = execution.request.input(name)
    assert tensor is not None
    return tensor.to_numpy().ravel()[0]


async def until(done: object) -> None:
    async with asyncio.timeout(60):
        while not done():
            await asyncio.sleep(0.001)
