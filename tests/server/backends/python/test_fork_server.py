"""The fork server: its forks are like started processes, and do not depend on it afterwards."""

import asyncio
import gc
import json
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import pytest

from conch.base.errors import ModelLoadError
from conch.domain.request import InferRequest
from conch.server.backends.child.conch_child.ipc import prctl
from conch.server.backends.processes.fork_server import MAIN, ForkServer
from conch.server.backends.python.backend import PythonBackend
from conch.server.backends.python.instance import PythonInstance
from tests.server.backends.python.running import TIMEOUT_S, Runner, plan, source, write_model
from tests.server.backends.python.test_death import SUICIDAL, descriptors, gone, pid_of
from tests.support.models import ECHO, tensor, write_identity, write_python
from tests.support.server_process import ConchProcess

TELLS_ABOUT_ITSELF = """
    import faulthandler, gc, json, multiprocessing, os, random, re, resource, signal, sys, threading
    import numpy as np
    import triton_python_backend_utils as pb_utils

    def threads():
        return len(os.listdir("/proc/self/task"))

    class TritonPythonModel:
        def execute(self, requests):
            status = dict(line.split(":", 1) for line in open("/proc/self/status"))
            kinds = [os.readlink(f"/proc/self/fd/{fd}") if os.path.exists(f"/proc/self/fd/{fd}") else ""
                     for fd in os.listdir("/proc/self/fd")]
            told = {
                "environment": dict(os.environ),
                "directory": os.getcwd(),
                "path": sys.path,
                "arguments": sys.argv,
                "main": sys.modules["__main__"].__file__,
                "modules": sorted(name for name in sys.modules if name.partition(".")[0] != "site"),
                "flags": str(sys.flags),
                "warnings": sys.warnoptions,
                "parent": os.getppid(),
                "leads": [os.getpgid(0) == os.getpid(), os.getsid(0) == os.getpid()],
                "signals": [str(signal.getsignal(n)) for n in signal.valid_signals()],
                "status": {key: status[key].strip() for key in (
                    "Umask", "SigBlk", "SigIgn", "SigCgt", "NoNewPrivs", "Cpus_allowed", "Uid", "Groups", "CapEff")},
                "limits": [resource.getrlimit(n) for n in range(16)],
                "priority": [os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)],
                "files": sorted(
                    re.sub(r"\\d+/task/\\d+", "thread", kind.partition(":")[0].partition(" (")[0]) for kind in kinds),
                "streams": [
                    [s.encoding, s.errors, s.line_buffering, s.write_through] for s in (sys.stdout, sys.stderr)],
                "input": sys.stdin.read(),
                "faulthandler": faulthandler.is_enabled(),
                "collector": [gc.isenabled(), gc.get_threshold()],
                "main thread": threading.current_thread() is threading.main_thread(),
                "threads": threads(),
                "product": float((np.ones((400, 400)) @ np.ones((400, 400))).sum()),
                "threads after a product": threads(),
            }
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                told["spawned"] = pool.apply(pow, (2, 5))
            with multiprocessing.get_context("fork").Pool(1) as pool:
                told["forked"] = pool.apply(pow, (2, 6))
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([json.dumps(told)], dtype=object))])]
"""

ROLLS_DICE = """
    import random, tempfile, uuid
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            rolled = [random.random(), np.random.rand(), np.random.default_rng().random(), uuid.uuid4().int / 2**128]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(rolled))])]
"""

# What a fork server runs that fails for as long as there is no file of that name.
REFUSES = """
import errno, os, runpy, sys
real = os.fork
def fork():
    if os.path.exists({marker!r}):
        return real()
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
os.fork = fork
sys.argv = sys.argv[:]
sys.argv[0] = {main!r}
runpy.run_path({main!r}, run_name="__main__")
"""


@pytest.fixture
def fork_server() -> Iterator[ForkServer]:
    server = ForkServer()
    yield server
    server.stop()


@asynccontextmanager
async def instances(
    directory: Path, server: ForkServer, number: int = 1, **options: Any
) -> AsyncIterator[list[Runner]]:
    """Run `number` instances of the model in this folder."""
    backend = PythonBackend(server)
    runners = []
    try:
        for i in range(number):
            instance = backend.instance(plan(source(directory, **options), f"model_0_{i}"))
            assert isinstance(instance, PythonInstance)
            runners.append(Runner(backend, instance))
        await asyncio.gather(*(runner.instance.start() for runner in runners))
        yield runners
    finally:
        await asyncio.gather(*(runner.instance.stop() for runner in runners))


@contextmanager
def limited(free: int) -> Iterator[None]:
    """Let this process open no more than so many files besides those that it has."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1 + free, before[1]))
    filling = []
    try:
        with suppress(OSError):
            while True:
                filling.append(os.dup(0))
        for _ in range(free):
            os.close(filling.pop())
        yield
    finally:
        for file in filling:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def values_of(runner: Runner) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((await runner.infer()).outputs[0].to_numpy()[0])
    return values


def open_files() -> int:
    """Count this process's descriptors, without those that something unreachable holds."""
    gc.collect()
    return descriptors()


def kill_and_wait(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


@pytest.fixture
def ours() -> Callable[[], list[psutil.Process]]:
    """List the children of this process that the test has started."""
    before = psutil.Process().children()
    return lambda: [process for process in psutil.Process().children() if process not in before]


async def test_a_forked_process_is_like_a_started_one(
    tmp_path: Path, fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("PYTHONHOME", "PYTHONPATH", "CONDA_PREFIX"):  # of no meaning to an interpreter that models bring
        monkeypatch.delenv(variable, raising=False)
    write_model(tmp_path, TELLS_ABOUT_ITSELF)
    new = {"EXECUTION_ENV_PATH": sys.prefix}
    async with (
        instances(tmp_path, fork_server) as (first,),
        instances(tmp_path, fork_server) as (second,),
        instances(tmp_path, fork_server, parameters=new) as (started,),
    ):
        other = await values_of(started)
        for forked in (first, second):
            facts = await values_of(forked)
            for values in (facts, other):
                for variable in ("PATH", "VIRTUAL_ENV"):
                    values["environment"].pop(variable, None)
            assert set(facts.pop("modules")) ^ set(other["modules"]) <= {"conch_child.python.fork_server", "select"}
            # A pool of threads for matrix products is there before the first product, or is made for it.
            assert facts.pop("threads") == 1
            assert facts == {key: other[key] for key in facts}
        assert facts["parent"] == os.getpid()
        assert facts["leads"] == [True, True]
        assert facts["status"]["NoNewPrivs"] == "1"
        # One of them is the list of them. No descriptor of the fork server.
        assert facts["files"] == [
            "",
            "/dev/null",
            "/memfd",
            "/memfd",
            "/proc/thread/schedstat",
            "pipe",
            "pipe",
            "socket",
        ]
    assert psutil.Process(fork_server.pid).num_threads() == 1


async def test_preloaded_modules_are_imported_before_forks(tmp_path: Path) -> None:
    pytest.importorskip("sklearn.linear_model", reason="needs scikit-learn, of the extra dev-all")
    write_model(tmp_path, TELLS_ABOUT_ITSELF)
    server = ForkServer(preload=("no_such_module", "sklearn.linear_model"))
    try:
        async with instances(tmp_path, server) as (runner,):
            assert "sklearn.linear_model" in (await values_of(runner))["modules"]
        assert psutil.Process(server.pid).num_threads() == 1  # otherwise a fork could copy a lock that is held
    finally:
        server.stop()


async def test_no_two_processes_have_the_same_luck(tmp_path: Path, fork_server: ForkServer) -> None:
    write_model(tmp_path, ROLLS_DICE)
    async with instances(tmp_path, fork_server, 3) as runners:
        rolled = [(await runner.infer()).outputs[0].to_numpy().tolist() for runner in runners]
    for numbers in zip(*rolled, strict=True):
        assert len(set(numbers)) == 3


async def test_fifty_models(tmp_path: Path, fork_server: ForkServer, ours: Callable[[], list[psutil.Process]]) -> None:
    write_model(tmp_path, SUICIDAL)
    async with instances(tmp_path, fork_server, 50) as runners:
        assert len({await pid_of(runner) for runner in runners}) == 50
        assert {process.pid for process in ours()} == {runner.pid for runner in runners} | {fork_server.pid}
        names = {process.name() for process in ours()}
        assert "conch model_0_7" in names
        # In MB; a process that does its imports itself takes some 20.
        assert median(psutil.Process(runner.pid).memory_full_info().pss / 1e6 for runner in runners) < 6
    fork_server.stop()
    assert ours() == []


async def test_processes_outlive_the_fork_server(tmp_path: Path, fork_server: ForkServer) -> None:
    write_model(tmp_path, SUICIDAL)
    async with instances(tmp_path, fork_server, 2) as (dies, stays):
        before, pid = await pid_of(stays), fork_server.pid
        os.kill(pid, signal.SIGKILL)
        await gone(pid)
        assert await pid_of(stays) == before
        error = await dies.error(id="exit")
        assert "exited with status 3" in error.message
        assert not await dies.ready_change()
        assert await dies.ready_change()
        assert fork_server.pid not in (0, pid)
        assert await pid_of(dies)
        error = await dies.error(id="segfault")
        assert "was killed by SIGSEGV" in error.message
        assert stays.instance.ready
        assert await pid_of(stays) == before


async def test_a_process_that_was_reaped_elsewhere(tmp_path: Path, fork_server: ForkServer) -> None:
    write_model(tmp_path, SUICIDAL)
    async with instances(tmp_path, fork_server) as (runner,):
        kill_and_wait(runner.pid)
        assert not await runner.ready_change()
        assert await runner.ready_change()
        assert await pid_of(runner)


async def test_cycles_leave_nothing_behind(
    tmp_path: Path, fork_server: ForkServer, ours: Callable[[], list[psutil.Process]]
) -> None:
    write_model(tmp_path, SUICIDAL)

    async def cycle() -> None:
        async with instances(tmp_path, fork_server, 3) as runners:
            await asyncio.gather(*(pid_of(runner) for runner in runners))
            await runners[0].error(id="kill")
            await runners[0].ready_change()
            await runners[0].ready_change()
            for runner in runners:
                runner.release_batch()

    await cycle()
    server = psutil.Process(fork_server.pid)
    before = open_files(), server.num_fds(), server.memory_info().rss
    for _ in range(5):
        await cycle()
    assert ours() == [server]
    assert server.children() == []
    assert (open_files(), server.num_fds()) == before[:2]
    assert server.memory_info().rss - before[2] < 1 << 20
    assert not prctl.is_subreaper()


async def test_orphans_of_the_dead_are_waited_for(
    tmp_path: Path, fork_server: ForkServer, ours: Callable[[], list[psutil.Process]]
) -> None:
    write_model(tmp_path, SUICIDAL)
    prctl.set_subreaper(True)  # as the first process of a container does; the fork server then leaves it as it is
    try:
        async with instances(tmp_path, fork_server) as (runner,):
            for _ in range(3):
                assert (await runner.infer(id="child")).outputs
            await runner.error(id="kill")
            assert not await runner.ready_change()
            assert await runner.ready_change()
            async with asyncio.timeout(TIMEOUT_S):
                while {process.pid for process in ours()} != {fork_server.pid, runner.pid}:
                    await asyncio.sleep(0.01)
        assert prctl.is_subreaper()
    finally:
        prctl.set_subreaper(False)


async def test_a_start_that_is_given_up_leaves_nothing_behind(
    tmp_path: Path, fork_server: ForkServer, ours: Callable[[], list[psutil.Process]]
) -> None:
    write_model(tmp_path, SUICIDAL)
    async with instances(tmp_path, fork_server):
        pass
    files = open_files()
    for turns in range(8):
        starting = asyncio.ensure_future(PythonBackend(fork_server).instance(plan(source(tmp_path))).start())
        for _ in range(turns):
            await asyncio.sleep(0)
        starting.cancel()
        assert await asyncio.wait([starting])
        assert starting.cancelled()
    del starting
    assert [process.pid for process in ours()] == [fork_server.pid]
    assert open_files() == files
    async with instances(tmp_path, fork_server) as (runner,):
        assert await pid_of(runner)


async def test_no_process_outlives_the_server(tmp_path: Path) -> None:
    """Neither of two fork servers, the first of which has been killed, nor what they have forked."""
    write_model(tmp_path, SUICIDAL)
    program = f"""
import asyncio, os, signal
from pathlib import Path
from conch.server.backends.processes.fork_server import ForkServer
from tests.server.backends.python.test_fork_server import instances
from tests.server.backends.python.test_death import gone

async def main():
    server = ForkServer()
    async with instances(Path({str(tmp_path)!r}), server) as (one,):
        first = server.pid
        os.kill(first, signal.SIGKILL)
        await gone(first)
        async with instances(Path({str(tmp_path)!r}), server) as (two,):
            for runner in (one, two):
                runner.submit(id="hang")
            print(one.pid, two.pid, server.pid, flush=True)
            await asyncio.sleep(600)

asyncio.run(main())
"""
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[4]
    )
    assert server.stdout is not None
    pids = [int(pid) for pid in (await asyncio.wait_for(server.stdout.readline(), TIMEOUT_S)).split()]
    assert len(pids) == 3
    assert all(psutil.pid_exists(pid) for pid in pids)
    server.kill()
    await server.wait()
    for pid in pids:
        await gone(pid)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["/no/such/python"], "cannot run '/no/such/python': No such file or directory"),
        ([sys.executable, "-c", "raise SystemExit('no numpy')"], "the fork server exited with status 1:\nno numpy"),
        ([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], "the fork server was killed by SIGKILL"),
    ],
)
async def test_one_that_cannot_start_says_why(
    tmp_path: Path, command: list[str], words: str, ours: Callable[[], list[psutil.Process]]
) -> None:
    write_model(tmp_path, SUICIDAL)
    server, files = ForkServer(command), open_files()
    for _ in range(2):
        with pytest.raises(ModelLoadError) as raised:
            async with instances(tmp_path, server):
                pass
        assert words in str(raised.value)
    del raised  # with the frames that it came through
    server.stop()
    assert ours() == []
    assert open_files() == files


async def test_a_fork_that_fails_says_why_and_the_next_may_not(tmp_path: Path) -> None:
    write_model(tmp_path, SUICIDAL)
    marker = tmp_path / "marker"
    server = ForkServer([sys.executable, "-c", REFUSES.format(marker=str(marker), main=str(MAIN)), "fork"])
    for _ in range(2):
        with pytest.raises(ModelLoadError, match="cannot fork a process: Resource temporarily unavailable"):
            async with instances(tmp_path, server):
                pass
    pid = server.pid
    marker.touch()
    async with instances(tmp_path, server) as (runner,):
        assert await pid_of(runner)
    assert server.pid == pid
    server.stop()


async def test_one_that_does_not_answer_is_replaced(tmp_path: Path) -> None:
    write_model(tmp_path, SUICIDAL)
    server = ForkServer(limit_s=3.0)
    async with instances(tmp_path, server):
        stuck = server.pid
        os.kill(stuck, signal.SIGSTOP)
        with pytest.raises(ModelLoadError, match="the fork server has not forked within 3 s"):
            async with instances(tmp_path, server):
                pass
        assert not psutil.pid_exists(stuck)
    patient = ForkServer()
    async with instances(tmp_path, patient) as (runner,):
        assert await pid_of(runner)
    patient.stop()
    server.stop()


@pytest.mark.parametrize("files", range(10))
async def test_without_free_descriptors_it_fails_and_then_it_does_not(
    tmp_path: Path, fork_server: ForkServer, files: int
) -> None:
    write_model(tmp_path, SUICIDAL)
    fork_server.start()
    before = open_files()
    with limited(files), pytest.raises(ModelLoadError, match="Too many open files"):
        async with instances(tmp_path, fork_server):
            pass
    assert open_files() == before
    async with instances(tmp_path, fork_server) as (runner,):
        assert await pid_of(runner)


async def test_a_fork_server_without_free_descriptors_says_so(tmp_path: Path, fork_server: ForkServer) -> None:
    write_model(tmp_path, SUICIDAL)
    async with instances(tmp_path, fork_server):
        pass
    before = resource.prlimit(fork_server.pid, resource.RLIMIT_NOFILE)
    for files, words in [(3, "the fork server did not fork a process"), (6, "Too many open files")]:
        resource.prlimit(fork_server.pid, resource.RLIMIT_NOFILE, (files, before[1]))
        with pytest.raises(ModelLoadError, match=words):
            async with instances(tmp_path, fork_server):
                pass
    resource.prlimit(fork_server.pid, resource.RLIMIT_NOFILE, before)
    async with instances(tmp_path, fork_server) as (runner,):
        assert await pid_of(runner)


async def test_what_has_been_given_up_does_not_disturb_the_others(tmp_path: Path, fork_server: ForkServer) -> None:
    write_model(tmp_path, SUICIDAL)
    async with instances(tmp_path, fork_server, 2) as (dies, stays):
        callers = stays.batch(InferRequest("model", []))
        os.kill(dies.pid, signal.SIGKILL)
        assert (await callers[0].response()).outputs
        assert not await dies.ready_change()
        assert await dies.ready_change()


async def test_a_server_of_other_models_has_no_fork_server(tmp_path: Path) -> None:
    write_identity(tmp_path / "models", "plain", "INT32", 1)
    with ConchProcess(tmp_path / "models", log=tmp_path / "log") as server:
        assert psutil.Process(server.process.pid).children() == []


async def test_a_server_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_python(tmp_path / "models", name, f"input {tensor('INPUT0', 'INT32', 1)}", ECHO)
    # Not as a context manager, which wants a server to stop by itself.
    server = ConchProcess(tmp_path / "models", log=tmp_path / "log").__enter__()
    try:
        family = psutil.Process(server.process.pid).children(recursive=True)
        assert {process.name() for process in family} >= {"conch one_0", "conch two_0"}
        assert len(family) == 3
    finally:
        assert server.stop(signal.SIGKILL) == -signal.SIGKILL
    for process in family:
        await gone(process.pid)
