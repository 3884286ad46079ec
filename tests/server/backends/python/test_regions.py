"""Outputs that a model's process puts into clients' memory itself."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from multiprocessing.shared_memory import SharedMemory as Object
from pathlib import Path

import numpy as np
import pytest

from conch.server.backends.child.conch_child.python.regions import RegionWriter

SIZE = 4 * 4096
DATA = np.arange(100, dtype=np.float32)


@pytest.fixture
def owned() -> Iterator[Object]:
    region = Object(create=True, size=SIZE)
    yield region
    region.close()
    if Path("/dev/shm", region.name).exists():
        region.unlink()


def place(owned: Object, offset: int = 0, room: int = SIZE, begin: int = 0) -> tuple[object, ...]:
    """Where an output goes, in a region that begins somewhere in the object."""
    path = Path("/dev/shm", owned.name)
    status = path.stat()
    return str(path), status.st_dev, status.st_ino, begin, SIZE - begin, offset, room


def mapped(owned: Object) -> bool:
    """Whether it is mapped by more than the test itself."""
    return Path("/proc/self/maps").read_text().count(owned.name) > 1


@pytest.mark.parametrize("begin", [0, 5000])
def test_an_output_goes_where_it_is_wanted(owned: Object, begin: int) -> None:
    regions = RegionWriter()
    for offset, data in ((40, DATA), (440, DATA.tobytes()), (901, DATA.reshape(10, 10).T)):
        assert regions.put(place(owned, offset, 400, begin), data, 400)
        expected = data if isinstance(data, bytes) else data.tobytes()
        assert bytes(owned.buf[begin + offset : begin + offset + 400]) == expected
    assert not any(owned.buf[: begin + 40])


def test_what_cannot_be_put_there_is_left_to_the_server(owned: Object) -> None:
    regions = RegionWriter()
    path, device, inode, *rest = place(owned)
    assert not regions.put(place(owned, room=399), DATA, 400)
    assert not regions.put((path, device, inode + 1, *rest), DATA, 400)
    assert not regions.put((f"{path}-nonesuch", device, inode, *rest), DATA, 400)
    assert not any(owned.buf)
    assert regions.put(place(owned), DATA, 400)
    os.truncate(path, 200)
    assert not regions.put(place(owned), DATA, 400)
    os.truncate(path, SIZE)


def test_a_deleted_object_is_unmapped(owned: Object) -> None:
    regions = RegionWriter()
    with ExitStack() as others:
        assert regions.put(place(owned), DATA, 400)
        owned.unlink()
        assert mapped(owned)
        for _ in range(9):
            other = Object(create=True, size=SIZE)
            others.callback(other.unlink)
            others.callback(other.close)
            assert regions.put(place(other), DATA, 400)
            assert not mapped(owned)
        assert mapped(other)
        regions.unmap_all()
        assert not mapped(other)


CUT = """
import os, signal, sys
import numpy as np
from pathlib import Path
from conch.server.backends.child.conch_child.python.regions import RegionWriter, _Mapping

path = Path(sys.argv[1])
found = path.stat()
place = (str(path), found.st_dev, found.st_ino, 0, 16384, 0, 16384)
data = np.ones(16384, np.uint8)
regions = RegionWriter()
assert regions.put(place, data, 16384)
os.truncate(path, 5000)
_Mapping.has = lambda self, size: True  # it is made smaller right after this was asked
assert not regions.put(place, data, 16384)
os.truncate(path, 16384)
assert regions.put(place, data, 16384)
assert path.read_bytes() == data.tobytes()
"""


def test_an_object_may_be_cut_short_meanwhile(owned: Object) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CUT, f"/dev/shm/{owned.name}"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_signals_are_the_models_again_afterwards(owned: Object) -> None:
    code = CUT + "os.kill(os.getpid(), signal.SIGBUS)"
    done = subprocess.run([sys.executable, "-c", code, f"/dev/shm/{owned.name}"], timeout=60)
    assert done.returncode == -signal.SIGBUS
