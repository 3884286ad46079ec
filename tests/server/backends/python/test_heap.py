import subprocess
import sys
from pathlib import Path

import pytest

from conch.server.backends import child

# Two tensors of 5 MB at a time, as a batch of two images makes them, again and again.
PAGE_FAULTS = """
import resource, sys
sys.path.append({folder!r})
from conch_child.ipc import heap
import numpy
heap.keep_freed_memory()
def work():
    return [numpy.ones(5_000_000, numpy.uint8) for _ in range(2)]
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    work()
before = faults()
for _ in range(10):
    work()
print((faults() - before) // 10)
heap.trim()
before = faults()
work()
print(faults() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts page faults of the C library of Linux")
def test_freed_memory_is_used_again_until_it_is_given_back() -> None:
    script = PAGE_FAULTS.format(folder=str(Path(child.__file__).parent))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    again, after_giving_back = map(int, done.stdout.split())
    assert after_giving_back > 100  # some of 2,400 pages; large pages make it fewer
    assert again < after_giving_back // 10
