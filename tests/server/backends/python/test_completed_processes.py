"""The process that completes a configuration becomes the first instance, if that would start an equal process."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from conch.domain.tensor import Tensor
from conch.server.backends.base import ModelSource
from conch.server.backends.python import instance as instance_module
from conch.server.backends.python.backend import PythonBackend
from conch.server.backends.python.instance import PythonInstance
from tests.server.backends.python.running import Runner, plan, source, write_model

MODEL = """
    import os
    from pathlib import Path

    import triton_python_backend_utils as pb_utils

    with Path(__file__).with_name("imports").open("a") as file:
        file.write(f"{os.getpid()}\\n")

    class TritonPythonModel:
        @staticmethod
        def auto_complete_config(config):
            pb_utils.Logger.log_info("completes")
            config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [-1]})
            return config

        def initialize(self, args):
            pb_utils.Logger.log_info("initializes")
            self.name = args["model_instance_name"]
            self.runs = pb_utils.MetricFamily("runs", "number of runs", pb_utils.MetricFamily.COUNTER)
            self.count = self.runs.Metric({})

        def execute(self, requests):
            self.count.increment(1)
            return [
                pb_utils.InferenceResponse(
                    [pb_utils.Tensor("OUT" + t.name()[2:], t.as_numpy()) for t in request.inputs()]
                )
                for request in requests
            ]
"""
INPUT = Tensor("IN", "FP32", (2,), bytes(8))


@asynccontextmanager
async def completed(directory: Path, **options: Any) -> AsyncIterator[tuple[PythonBackend, ModelSource]]:
    """Complete a model's configuration, as at the begin of a load."""
    write_model(directory, MODEL)
    backend, model = PythonBackend(), source(directory, outputs=["OUT"], **options)
    await backend.start()
    try:
        document = await backend.complete(model)
        assert document["output"][0]["name"] == "OUT"
        yield backend, model
    finally:
        await backend.stop()


@asynccontextmanager
async def started(backend: PythonBackend, model: ModelSource, name: str = "model_0_0") -> AsyncIterator[Runner]:
    """Start an instance."""
    instance = backend.instance(plan(model, name))
    assert isinstance(instance, PythonInstance)
    try:
        await instance.start()
        yield Runner(backend, instance)
    finally:
        await instance.stop()


def imports(directory: Path) -> list[int]:
    """Return the processes that have imported the model's code."""
    return [int(line) for line in (directory / "1" / "imports").read_text().split()]


async def test_the_first_instance_imports_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with completed(tmp_path) as (backend, model), started(backend, model) as runner:
        assert imports(tmp_path) == [runner.pid]
        assert psutil.Process(runner.pid).name() == "conch model_0_0"
        response = await runner.infer(INPUT)
        assert [tensor.name for tensor in response.outputs] == ["OUT"]
        assert [sample.value for sample in backend.custom_metrics()] == [1]
        async with started(backend, model, "model_0_1") as second:
            assert imports(tmp_path) == [runner.pid, second.pid]
        psutil.Process(runner.pid).kill()
        while not await runner.ready_change():
            pass
        assert imports(tmp_path)[2:] == [runner.pid]
    logged = {record.getMessage(): getattr(record, "instance", "") for record in caplog.records}
    assert (logged["completes"], logged["initializes"]) == ("model_autocomplete", "model_0_0")


@pytest.mark.parametrize(
    "changed",
    [
        {"settings": {"stub-timeout-seconds": "50"}},
        {"settings": {"memory-limit-bytes": "4000000000"}},
        {"cores": frozenset({0})},
    ],
)
async def test_another_confinement_needs_another_process(tmp_path: Path, changed: dict[str, Any]) -> None:
    async with completed(tmp_path) as (backend, model), started(backend, replace(model, **changed)) as runner:
        first, second = imports(tmp_path)
        assert (first != runner.pid, second) == (True, runner.pid)


async def test_a_process_that_has_died_is_not_taken(tmp_path: Path) -> None:
    async with completed(tmp_path) as (backend, model):
        (pid,) = imports(tmp_path)
        psutil.Process(pid).kill()
        async with started(backend, model) as runner:
            assert imports(tmp_path) == [pid, runner.pid]
            await runner.infer(INPUT)


async def test_a_process_without_an_instance_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance_module, "_KEPT_S", 0.1)
    async with completed(tmp_path):
        (pid,) = imports(tmp_path)
        while psutil.pid_exists(pid):
            await asyncio.sleep(0.02)


async def test_a_later_completion_replaces_it(tmp_path: Path) -> None:
    async with completed(tmp_path) as (backend, model):
        await backend.complete(model)
        async with started(backend, model) as runner:
            assert imports(tmp_path)[1:] == [runner.pid]
        await backend.complete(model)
        write_model(tmp_path, MODEL.replace("auto_complete_config", "other"))
        await backend.complete(model)  # needs no process
        async with started(backend, model) as runner:
            assert imports(tmp_path)[3:] == [runner.pid]
    assert not [pid for pid in imports(tmp_path) if psutil.pid_exists(pid)]
