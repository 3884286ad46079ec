"""Memory that goes away while it is copied, in processes that may die of it."""

import signal
import subprocess
import sys

import pytest

BEGINNING = """
import ctypes, mmap, os, signal
import numpy as np
from conch.server.backends.child.conch_child.ipc.fault_guard import FaultGuard

SIZE = 16 * mmap.PAGESIZE
descriptor = os.memfd_create("cut")
os.ftruncate(descriptor, SIZE)
mapping = np.frombuffer(mmap.mmap(descriptor, SIZE), np.uint8)
mapping[:] = 7
private = np.full(SIZE, 3, np.uint8)
guard = FaultGuard()
guard.install()
"""
READ = """
assert guard.copy(private, mapping, mapping)
assert (private == 7).all()
os.ftruncate(descriptor, 5 * mmap.PAGESIZE)
assert not guard.copy(private, mapping, mapping)
assert (private[: 5 * mmap.PAGESIZE] == 7).all()
assert not private[5 * mmap.PAGESIZE :].any()
"""
WRITE = """
os.ftruncate(descriptor, 0)
assert not guard.copy(mapping, private, mapping)
assert os.fstat(descriptor).st_size == 0
"""
# A small copy keeps the interpreter's lock, a large one does not.
SMALL = """
os.ftruncate(descriptor, 0)
assert not guard.copy(private[:4], mapping[8:12], mapping)
assert not private[:4].any()
assert guard.copy(private[:4], mapping[8:12], mapping)  # the missing pages have been replaced
"""
OTHER_MAPPING = """
other = np.frombuffer(mmap.mmap(descriptor, SIZE), np.uint8)
os.ftruncate(descriptor, 0)
guard.copy(private, other, mapping)
"""
NO_COPY = "os.ftruncate(descriptor, 0); mapping.sum()"
SENT = "os.kill(os.getpid(), signal.SIGBUS); mapping.sum()"


def run(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *options, "-c", BEGINNING + code], capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("code", [READ, WRITE, SMALL], ids=["read", "write", "small"])
def test_what_is_missing_is_empty_and_said(code: str) -> None:
    done = run(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("code", [OTHER_MAPPING, NO_COPY, SENT], ids=["other mapping", "no copy", "sent"])
def test_any_other_fault_ends_the_process(code: str) -> None:
    assert run(code).returncode == -signal.SIGBUS


def test_the_previous_handler_receives_the_signal() -> None:
    done = run(NO_COPY, "-X", "faulthandler")
    assert done.returncode == -signal.SIGBUS
    assert "Fatal Python error: Bus error" in done.stderr
