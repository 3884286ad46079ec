"""The waits of the threads that a framework computes with."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from conch.server.backends.pool_threads import PoolThreads

SECOND = 10**9
HOG = "import os; os.sched_setaffinity(0, {%d}); print(flush=True)\nwhile True: pass"


def work(core: int) -> None:
    """Compute for a while on a core."""
    os.sched_setaffinity(0, {core})
    until = time.thread_time() + 0.1
    while time.thread_time() < until:
        pass


@pytest.fixture
def busy_core() -> Iterator[int]:
    """A core with a busy process."""
    core = max(os.sched_getaffinity(0))
    with subprocess.Popen([sys.executable, "-c", HOG % core], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield core
        process.kill()


def in_thread(function: object, *arguments: object) -> list[int]:
    """What a function returns, in another thread: PoolThreads renames the one in which it is made."""
    with ThreadPoolExecutor(1) as own:
        return own.submit(function, *arguments).result()  # type: ignore[arg-type]


def waits(core: int) -> list[int]:
    pool = PoolThreads("a model_0_0")
    with ThreadPoolExecutor(2) as framework:
        barrier = threading.Barrier(2)
        list(framework.map(lambda _: barrier.wait(), range(2)))  # starts both
        pool.begin(time.monotonic_ns())
        framework.submit(work, core).result()
        waited = [pool.waited(time.monotonic_ns()), pool.waited(time.monotonic_ns())]
    pool.begin(time.monotonic_ns() + 2 * SECOND)  # they have ended
    waited.append(pool.waited(time.monotonic_ns() + 3 * SECOND))
    pool.close()
    return waited


def test_the_longest_wait_of_a_thread_counts_unless_it_was_read_a_moment_ago(busy_core: int) -> None:
    waited, again, ended = in_thread(waits, busy_core)
    assert waited > 0
    assert again == ended == 0


def of_others(core: int) -> list[int]:
    with ThreadPoolExecutor(1) as others:
        others.submit(time.sleep, 0).result()
        pool = PoolThreads("a model_0_0")
        pool.begin(time.monotonic_ns())
        others.submit(work, core).result()
        waited = [pool.waited(time.monotonic_ns() + SECOND)]
        pool.close()
    return waited


def test_threads_that_were_there_before_do_not_count(busy_core: int) -> None:
    assert in_thread(of_others, busy_core) == [0]
