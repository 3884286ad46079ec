"""The shared memory by itself: both sides in one process."""

import gc
import mmap
import os
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conch.server.backends.child.conch_child.ipc.arena import (
    LENT,
    MAX_INLINE_BYTES,
    ArenaReader,
    ArenaWriter,
    Parcel,
    create,
)
from conch.server.backends.child.conch_child.ipc.wire import WireError

SIZE = 1 << 20


@pytest.fixture
def descriptor() -> Iterator[int]:
    descriptor = create("test", SIZE)
    yield descriptor
    os.close(descriptor)


def resident(descriptor: int) -> int:
    """Bytes of memory that the arena takes."""
    return os.fstat(descriptor).st_blocks * 512


@given(st.lists(st.one_of(st.integers(1, SIZE // 3), st.none()), max_size=60), st.randoms())
def test_blocks_never_overlap_and_all_comes_back(steps: list[int | None], random: object) -> None:
    descriptor = create("test", SIZE)
    writer = ArenaWriter(descriptor)
    os.close(descriptor)
    blocks: dict[int, int] = {}
    for step in steps:
        if step is None:
            if blocks:
                offset = random.choice(sorted(blocks))  # type: ignore[attr-defined]
                writer.free([offset])
                del blocks[offset]
            continue
        offset = writer.write(bytes(step), step)
        if offset is not None:
            assert offset % 64 == 0
            assert offset + step <= SIZE
            assert all(offset + step <= start or start + size <= offset for start, size in blocks.items())
            blocks[offset] = step
    writer.free(blocks)
    assert writer.used == 0
    assert writer.write(bytes(SIZE), SIZE) == 0


def test_what_is_written_is_read(descriptor: int) -> None:
    writer, reader = ArenaWriter(descriptor), ArenaReader(descriptor)
    grid = np.arange(24, dtype=np.float64).reshape(4, 6)
    for data, size, expected in [
        (b"abc", 3, b"abc"),
        (memoryview(grid).cast("B"), grid.nbytes, grid.tobytes()),
        (grid.T, grid.nbytes, grid.T.tobytes()),
        (np.array(3.0), 8, np.array(3.0).tobytes()),
    ]:
        offset = writer.write(data, size)
        assert offset is not None
        assert reader.view(offset, size).tobytes() == expected


def test_a_full_arena_raises_no_error(descriptor: int) -> None:
    writer = ArenaWriter(descriptor)
    assert writer.write(bytes(SIZE), SIZE) == 0
    assert writer.write(b"x", 1) is None
    writer.free([0])
    assert writer.write(b"x", 1) == 0


def test_offsets_that_make_no_sense(descriptor: int) -> None:
    writer, reader = ArenaWriter(descriptor), ArenaReader(descriptor)
    with pytest.raises(WireError):
        writer.free([64])
    for offset, size in [(-64, 10), (0, SIZE + 1), (SIZE, 1), (0, 0), (0, -1)]:
        with pytest.raises(WireError):
            reader.view(offset, size)
    view = reader.view(0, 10)
    with pytest.raises(WireError):
        reader.view(0, 10)
    del view


@pytest.mark.parametrize(
    "derive",
    [
        lambda view: view[2:4],
        lambda view: view.view(np.float32).reshape(2, -1)[1],
        lambda view: memoryview(view)[3:].cast("b"),
        lambda view: np.frombuffer(memoryview(view)[8:16], np.int32),
        lambda view: np.from_dlpack(view.view(np.int64)),
        lambda view: memoryview(memoryview(view)),
    ],
)
def test_a_block_is_held_by_whatever_looks_at_it(descriptor: int, derive: object) -> None:
    calls: list[int] = []
    reader = ArenaReader(descriptor, lambda: calls.append(1))
    view = reader.view(128, 16)
    derived = derive(view)  # type: ignore[operator]
    del view
    gc.collect()
    assert reader.take_released() == ()
    assert calls == []
    del derived
    gc.collect()
    assert reader.take_released() == (128,)
    assert calls == [1]
    assert reader.take_released() == ()


def test_a_lent_block_is_held_by_whatever_looks_at_it(descriptor: int) -> None:
    owner, reader = ArenaWriter(descriptor), ArenaReader(descriptor)
    offset = owner.write(b"x" * 100, 100)
    assert offset is not None
    other = create("other", SIZE)
    lender, borrower = ArenaWriter(other), ArenaReader(other)
    os.close(other)
    view = reader.view(offset, 100)
    assert reader.offset_of(view) == offset
    assert reader.offset_of(np.zeros(8, np.uint8)) is None
    places = [lender.lend(offset, view) for _ in range(2)]
    assert places == [LENT + offset] * 2
    del view
    borrowed = [borrower.borrow(place, 100, owner) for place in places]
    assert {bytes(array) for array in borrowed} == {b"x" * 100}
    borrowed.pop()
    lender.free(borrower.take_released())
    assert reader.take_released() == ()
    borrowed.pop()
    lender.free(borrower.take_released())
    assert reader.take_released() == (offset,)
    with pytest.raises(WireError):
        lender.free(places)
    for place, size in ((LENT, 0), (LENT, SIZE + 1), (LENT + SIZE, 1), (LENT - 1, 1)):
        with pytest.raises(WireError):
            borrower.borrow(place, size, owner)


def test_trim_gives_memory_back_when_nothing_is_in_use(descriptor: int) -> None:
    writer = ArenaWriter(descriptor)
    offset = writer.write(bytes(SIZE), SIZE)
    assert offset is not None
    assert resident(descriptor) >= SIZE
    writer.trim(0)
    assert resident(descriptor) >= SIZE
    writer.free([offset])
    writer.trim(2 * mmap.PAGESIZE - 1)
    assert resident(descriptor) == 2 * mmap.PAGESIZE
    assert writer.high_water == 2 * mmap.PAGESIZE - 1
    assert writer.write(bytes(SIZE), SIZE) == 0


def test_a_parcel_places_what_is_small_inline(descriptor: int) -> None:
    writer = ArenaWriter(descriptor)
    parcel = Parcel(writer)
    assert parcel.put(b"abc", 3) == ~0
    assert parcel.put(np.arange(3, dtype=np.int16), 6) == ~8
    assert parcel.size == 16
    assert b"".join(parcel.parts) == b"abc" + bytes(5) + b"\0\0\1\0\2\0" + bytes(2)
    assert parcel.put(bytes(MAX_INLINE_BYTES), MAX_INLINE_BYTES) == 0
    assert parcel.put(bytes(SIZE), SIZE) == ~16
    assert writer.used == MAX_INLINE_BYTES
