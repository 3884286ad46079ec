"""The registry of regions by itself, over real shared memory objects."""

import os
import re
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory as Object
from pathlib import Path

import pytest

from conch.base.errors import Code, ConchError, InvalidRequest, NotFound, Unavailable
from conch.server.core.shared_memory.regions import SharedMemory


@pytest.fixture
def memory() -> Iterator[Object]:
    region = Object(create=True, size=4096)
    region.buf[:] = bytes(range(256)) * 16
    yield region
    region.close()
    region.unlink()


def registered(memory: Object, limit: int = 2**20) -> SharedMemory:
    regions = SharedMemory(limit)
    regions.register("r", f"/{memory.name}", 0, 4096)
    return regions


def test_read_returns_a_copy(memory: Object) -> None:
    data = registered(memory).part("r", 16, 4).read()
    memory.buf[16:20] = b"\0\0\0\0"
    assert bytes(data) == bytes([16, 17, 18, 19])


def test_write_starts_at_the_beginning_of_the_part(memory: Object) -> None:
    registered(memory).part("r", 4094, 2).write(b"\xaa")
    assert bytes(memory.buf[4093:]) == bytes([253, 0xAA, 255])


@pytest.mark.parametrize("size", [0, 4096])
def test_part_may_be_the_region_or_empty(memory: Object, size: int) -> None:
    part = registered(memory).part("r", 0, size)
    assert len(part.read()) == part.size == size
    part.write(bytes(size))


@pytest.mark.parametrize(
    ("offset", "size"), [(-1, 1), (4096, 0), (4096, 1), (0, 4097), (4095, 2), (1, -1), (2**64, 1), (1, 2**64 - 1)]
)
def test_part_beyond_the_region_is_rejected(memory: Object, offset: int, size: int) -> None:
    with pytest.raises(InvalidRequest, match=r"Invalid offset( \+ byte size)? for shared memory region: 'r'"):
        registered(memory).part("r", offset, size)


def test_held_bytes_are_bounded(memory: Object) -> None:
    """An object that was never written to has any size."""
    part = registered(memory, limit=10_000).part("r", 0, 4096)
    first, second = part.read(), part.read()
    with pytest.raises(Unavailable, match="requests hold 8192 bytes, the maximum is 10000"):
        part.read()
    view = first[10:20]
    del first
    with pytest.raises(Unavailable):
        part.read()
    del view
    assert bytes(part.read()) == bytes(second)


def test_a_region_in_use_stays_registered(memory: Object) -> None:
    regions = registered(memory)
    regions.register("free", f"/{memory.name}", 0, 4)
    parts = [regions.part("r", 0, 4), regions.part("r", 4, 4).first(2)]
    for _ in range(2):
        text = "Cannot unregister shared memory region 'r', it is currently in use."
        with pytest.raises(ConchError, match=f"^{re.escape(text)}$") as caught:
            regions.unregister("r", "system")
        assert caught.value.code is Code.INTERNAL
        text = "Failed to unregister the following system shared memory regions: r ,"
        with pytest.raises(ConchError, match=f"^{re.escape(text)}$"):
            regions.unregister("", "system")
        assert [row["name"] for row in regions.status("", "system")] == ["r"]  # the other one is unregistered
        parts.pop().write(b"late")
    assert bytes(memory.buf[:8]) == b"latelate"
    regions.unregister("r", "system")
    with pytest.raises(NotFound):
        regions.part("r", 0, 4)


def test_unregistered_region_is_freed(memory: Object) -> None:
    def kept() -> int:
        """Count the descriptors and mappings of the object, as other threads open and close files meanwhile."""
        # realpath of a descriptor that another thread has closed meanwhile is its path in /proc.
        opened = [os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()]
        return "\n".join([*opened, Path("/proc/self/maps").read_text()]).count(memory.name)

    before = kept()
    regions = registered(memory)
    assert kept() == before + 2
    with pytest.raises(InvalidRequest, match="already in manager"):
        regions.register("r", f"/{memory.name}", 0, 4096)
    with pytest.raises(InvalidRequest, match="invalid args"):
        regions.register("s", f"/{memory.name}", 0, 4097)
    with pytest.raises(ConchError, match="Unable to open"):
        regions.register("s", "/conch-test-nonesuch", 0, 1)
    assert kept() == before + 2
    regions.unregister("r", "system")
    assert kept() == before


def test_number_of_regions_is_bounded(memory: Object) -> None:
    regions = registered(memory)
    for number in range(4095):
        regions.register(f"r{number}", f"/{memory.name}", 0, 1)
    with pytest.raises(Unavailable, match="4096 regions are registered, which is the maximum"):
        regions.register("one more", f"/{memory.name}", 0, 1)


def test_objects_of_other_programs_are_not_for_clients(memory: Object) -> None:
    regions = SharedMemory()
    for key in ("/sem.mp-1", "nccl-abc", "/.hidden", "/PostgreSQL.1", "__KMP_REGISTERED_LIB_1", "cuda.shm.0"):
        with pytest.raises(InvalidRequest, match="its name is that of a library or of another program"):
            regions.register("r", key, 0, 1)
    regions.register("r", f"/{memory.name}", 0, 1)


def test_objects_of_engines_are_not_for_clients(memory: Object) -> None:
    own: set[int] = set()
    regions = SharedMemory(own=own)
    own.add(Path("/dev/shm", memory.name).stat().st_ino)
    with pytest.raises(InvalidRequest, match="it belongs to an engine of this server"):
        regions.register("r", f"/{memory.name}", 0, 1)
    own.clear()
    regions.register("r", f"/{memory.name}", 0, 1)


def test_names_begin_with_the_prefix(memory: Object) -> None:
    with pytest.raises(InvalidRequest, match=re.escape("names begin with 'tensors-' here (--client-shm-prefix)")):
        SharedMemory(prefix="tensors-").register("r", f"/{memory.name}", 0, 1)
    SharedMemory(prefix=memory.name[:4]).register("r", f"/{memory.name}", 0, 1)
