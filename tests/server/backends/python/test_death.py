"""Processes that die: their callers get errors, they are restarted, and they leave nothing behind."""

import asyncio
import gc
import os
import signal
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from conch.base.errors import BackendError, Code, ModelLoadError
from conch.domain.request import InferRequest
from conch.domain.tensor import Tensor
from conch.server.backends.batch import Batch
from tests.processes import has_ended
from tests.server.backends.python.running import IDENTITY, TIMEOUT_S, Caller, Runner, running

SUICIDAL = """
    import ctypes
    import os
    import signal
    import subprocess
    import sys
    import time
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            how = requests[0].request_id()
            if how == "exit":
                os._exit(3)
            if how == "segfault":
                ctypes.string_at(0)
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "hang":
                print("hanging", flush=True)
                time.sleep(600)
            if how == "close":
                os.closerange(3, 100)
                time.sleep(600)
            if how == "babble":
                import conch_child.python.api.session as session
                session.current().channel._connection.sendall(b"\\xff" * 100)
                time.sleep(600)
            if how == "child":
                child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
                return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([child.pid]))])]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([os.getpid()]))]) for _ in requests]
"""

DIES_ON_SECOND_START = """
    import os
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            marker = os.path.join(args["model_repository"], "marker")
            starts = len(open(marker).read()) if os.path.exists(marker) else 0
            with open(marker, "a") as file:
                file.write("x")
            if starts == 1:
                raise RuntimeError("not now")

        def execute(self, requests):
            os._exit(1)
"""


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def arenas() -> int:
    """Count the mappings of memory that is shared with models."""
    return Path("/proc/self/maps").read_text().count("memfd:conch")


async def pid_of(runner: Runner) -> int:
    return int((await runner.infer()).outputs[0].to_numpy()[0])


async def gone(pid: int) -> None:
    """Wait until there is no such process."""
    async with asyncio.timeout(TIMEOUT_S):
        while not has_ended(pid):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("exit", "exited with status 3"),
        ("segfault", "was killed by SIGSEGV"),
        ("kill", "was killed by SIGKILL"),
        ("close", "was killed by SIGKILL"),
        ("babble", "was killed by SIGKILL"),
    ],
)
async def test_a_dead_process_costs_its_own_batch_and_comes_back(tmp_path: Path, how: str, words: str) -> None:
    async with running(tmp_path, SUICIDAL) as runner:
        before = await pid_of(runner)
        callers = runner.batch(InferRequest("model", [], id=how), InferRequest("model", []))
        for caller in callers:
            error = await caller.error()
            assert isinstance(error, BackendError)
            assert error.code is Code.INTERNAL
            assert error.message.startswith("Stub process 'model_0_0' is not healthy.")
            assert words in error.message
        await runner.released.wait()
        assert not await runner.ready_change()
        assert await runner.ready_change()
        assert runner.instance.ready
        assert await pid_of(runner) != before


async def test_batches_sent_ahead_are_given_back(tmp_path: Path) -> None:
    async with running(tmp_path, SUICIDAL) as runner:
        returned: list[int] = []
        batches = []
        for number, how in enumerate(["", "exit", "", ""]):
            caller = Caller(InferRequest("model", [], id=how))
            batch = Batch([caller], lambda _: runner.released.set(), lambda _, number=number: returned.append(number))
            batches.append((batch, caller))
            runner.instance.execute(batch)
        assert (await batches[0][1].response()).outputs
        assert "exited with status 3" in (await batches[1][1].error()).message
        assert not await runner.ready_change()
        assert returned == [3, 2]
        assert batches[2][1].last is batches[3][1].last is None
        assert await runner.ready_change()


async def test_only_a_quick_model_is_sent_batches_ahead(tmp_path: Path) -> None:
    async with running(tmp_path, SUICIDAL) as runner:
        assert not any(runner.instance.ahead(crowded=crowded) for crowded in (False, True))
        async with asyncio.timeout(TIMEOUT_S):
            while not runner.instance.ahead(crowded=False):
                await runner.infer()
        os.kill(runner.pid, signal.SIGKILL)
        assert not await runner.ready_change()
        assert runner.instance.ahead(crowded=False) == 0


async def test_nothing_is_sent_behind_an_execution_that_takes_unusually_long(tmp_path: Path) -> None:
    async with running(tmp_path, SUICIDAL) as runner:
        async with asyncio.timeout(TIMEOUT_S):
            while not runner.instance.ahead(crowded=False):
                await runner.infer()
            runner.instance.execute(Batch([Caller(InferRequest("model", [], id="hang"))], lambda _: None))
            while any(runner.instance.ahead(crowded=crowded) for crowded in (False, True)):
                await asyncio.sleep(0.001)
        os.kill(runner.pid, signal.SIGKILL)
        assert not await runner.ready_change()


async def test_a_crash_leaves_its_stack_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(tmp_path, SUICIDAL) as runner:
        await runner.error(id="segfault")
    lines = [record.getMessage() for record in caplog.records]
    assert any("Segmentation fault" in line for line in lines)
    assert any("model.py" in line and "in execute" in line for line in lines)
    assert "process was killed by SIGSEGV; restarting now" in lines


async def test_death_from_outside_while_idle(tmp_path: Path) -> None:
    async with running(tmp_path, SUICIDAL) as runner:
        os.kill(runner.pid, signal.SIGKILL)
        assert not await runner.ready_change()
        assert await runner.ready_change()
        assert await pid_of(runner) == runner.pid


async def test_a_failed_restart_is_retried(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(tmp_path, DIES_ON_SECOND_START) as runner:
        await runner.error()
        assert not await runner.ready_change()
        assert await runner.ready_change()
    assert (tmp_path / "marker").read_text() == "xxx"
    assert any("failed to initialize: RuntimeError: not now" in record.getMessage() for record in caplog.records)


async def test_stop_during_the_wait_for_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path, DIES_ON_SECOND_START) as runner:
        await runner.error()
        await runner.instance.stop()
        assert not runner.instance.ready


async def test_nothing_is_left(tmp_path: Path) -> None:
    array = Tensor.from_numpy("IN0", np.arange(200_000))
    async with running(tmp_path, IDENTITY) as runner:  # what is made once per process is made now
        await runner.infer(array)
        runner.release_batch()
    gc.collect()
    children, files, mappings = psutil.Process().children(recursive=True), descriptors(), arenas()
    assert mappings == 0
    for _ in range(3):
        async with running(tmp_path, IDENTITY) as runner:
            await runner.infer(array)
            os.kill(runner.pid, signal.SIGKILL)
            await runner.ready_change()
            await runner.ready_change()
            await runner.infer(array)
            assert arenas() >= 2
            runner.release_batch()
    gc.collect()
    assert psutil.Process().children(recursive=True) == children
    assert descriptors() == files
    assert arenas() == 0


async def test_what_the_model_started_ends_with_it(tmp_path: Path) -> None:
    async with running(tmp_path, SUICIDAL) as runner:
        started = int((await runner.infer(id="child")).outputs[0].to_numpy()[0])
        os.kill(runner.pid, signal.SIGKILL)
        await gone(started)


async def test_no_process_outlives_the_server(tmp_path: Path) -> None:
    """A server that is killed, not stopped, while a model is busy."""
    program = f"""
import asyncio
from pathlib import Path
from tests.server.backends.python.running import running
from tests.server.backends.python.test_death import SUICIDAL

async def main():
    async with running(Path({str(tmp_path)!r}), SUICIDAL) as runner:
        print(runner.pid, flush=True)
        runner.submit(id="hang")
        await asyncio.sleep(600)

asyncio.run(main())
"""
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[4]
    )
    assert server.stdout is not None
    pid = int(await asyncio.wait_for(server.stdout.readline(), TIMEOUT_S))
    assert psutil.pid_exists(pid)
    server.kill()
    await server.wait()
    await gone(pid)


async def test_stop_kills_what_does_not_end(tmp_path: Path) -> None:
    async with running(tmp_path, SUICIDAL, settings={"stub-timeout-seconds": "1"}) as runner:
        pid = runner.pid
        caller = runner.submit(id="hang")
        await runner.instance.stop()
        error = await caller.error()
        assert "was stopped before the request was finished" in error.message
        await gone(pid)


async def test_a_process_that_dies_in_initialize(tmp_path: Path) -> None:
    code = """
        import os, sys
        print("last words", file=sys.stderr)
        os._exit(9)
    """
    with pytest.raises(ModelLoadError, match=r"(?s)exited with status 9.*last words"):
        async with running(tmp_path, code):
            pass
