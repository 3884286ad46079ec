"""CUDA shared memory regions, without a GPU: an array stands for its memory."""

from importlib.util import find_spec

import numpy as np
import numpy.typing as npt
import pytest

from conch.base.errors import BackendError, ConchError, InvalidRequest, NotFound, Unavailable
from conch.server.core.shared_memory.cuda_regions import open_memory
from conch.server.core.shared_memory.regions import SharedMemory

HANDLE = bytes(range(64))


class Played:
    """256 bytes of a GPU."""

    def __init__(self) -> None:
        self.bytes = np.arange(256, dtype=np.uint8)
        self.size = 256
        self.opened: list[tuple[bytes, int]] = []
        self.trouble = ""

    def open(self, handle: bytes, device: int) -> "Played":
        self._check()
        self.opened.append((handle, device))
        return self

    def read(self, target: npt.NDArray[np.uint8], offset: int) -> None:
        self._check()
        target[:] = self.bytes[offset : offset + len(target)]

    def write(self, source: npt.NDArray[np.uint8], offset: int) -> None:
        self._check()
        self.bytes[offset : offset + len(source)] = source

    def _check(self) -> None:
        if self.trouble:
            raise BackendError(self.trouble)


@pytest.fixture
def played() -> Played:
    return Played()


@pytest.fixture
def regions(played: Played) -> SharedMemory:
    memory = SharedMemory(1000, played.open)
    memory.register_cuda("c", HANDLE, 1, 200)
    return memory


def test_read_and_write(regions: SharedMemory, played: Played) -> None:
    assert played.opened == [(HANDLE, 1)]
    part = regions.part("c", 100, 4)
    assert bytes(part.read()) == bytes([100, 101, 102, 103])
    target = np.empty(4, np.uint8)
    part.read_into(target)
    part.write(b"\7\7")
    assert bytes(target) == bytes([100, 101, 102, 103])
    assert bytes(part.read()) == bytes([7, 7, 102, 103])
    assert part.location is None  # model processes do not write to it
    nothing = regions.part("c", 5, 0)
    nothing.write(b"")
    assert len(nothing.read()) == 0


@pytest.mark.parametrize(("offset", "size"), [(-1, 1), (200, 0), (200, 1), (199, 2), (0, 201), (2**64, 1)])
def test_parts_stay_within_the_region(regions: SharedMemory, offset: int, size: int) -> None:
    with pytest.raises(InvalidRequest, match=r"Invalid offset( \+ byte size)? for shared memory region: 'c'"):
        regions.part("c", offset, size)


def test_copies_count_as_held(regions: SharedMemory) -> None:
    held = [regions.part("c", 0, 200).read() for _ in range(5)]
    with pytest.raises(Unavailable, match="no room for 200 bytes"):
        regions.part("c", 0, 200).read()
    del held


def test_gpu_errors_name_the_region(regions: SharedMemory, played: Played) -> None:
    played.trouble = "CUDA: out of luck"
    part = regions.part("c", 0, 4)
    for use in (part.read, lambda: part.write(b"1")):
        with pytest.raises(Unavailable, match="region 'c' of GPU 1 cannot be used: CUDA: out of luck"):
            use()
    with pytest.raises(
        InvalidRequest, match=r"^failed to register shared memory region: invalid args: .*'d': CUDA: out"
    ):
        regions.register_cuda("d", HANDLE, 0, 4)


@pytest.mark.parametrize("size", [0, -1, 257, 2**64])
def test_region_must_fit_its_memory(regions: SharedMemory, size: int) -> None:
    with pytest.raises(InvalidRequest, match=r"region 'd': invalid args: its memory has 256 bytes, the region is to"):
        regions.register_cuda("d", HANDLE, 0, size)


def test_both_kinds_share_one_namespace(regions: SharedMemory) -> None:
    with pytest.raises(InvalidRequest, match="shared memory region 'c' already in manager"):
        regions.register_cuda("c", HANDLE, 0, 4)
    with pytest.raises(InvalidRequest, match="shared memory region 'c' already in manager"):
        regions.register("c", "/conch-test-nonesuch", 0, 4)
    with pytest.raises(InvalidRequest, match="'region name' is necessary to register cuda shared memory region"):
        regions.register_cuda("", HANDLE, 0, 4)
    with pytest.raises(NotFound, match="'c' is registered as CUDA shared memory, not system shared memory"):
        regions.status("c", "system")


def test_status_and_unregister(regions: SharedMemory) -> None:
    regions.register_cuda("d", HANDLE, 0, 4)
    rows = [tuple(row.values()) for row in regions.status("", "cuda")]
    assert rows == [("c", 1, 200), ("d", 0, 4)]
    assert [row["name"] for row in regions.status("d", "cuda")] == ["d"]
    assert not regions.status("", "system")
    regions.unregister("", "system")
    regions.unregister("c", "system")
    assert len(regions.status("", "cuda")) == 2
    part = regions.part("c", 0, 4)
    with pytest.raises(ConchError, match=r"^Cannot unregister shared memory region 'c', it is currently in use\.$"):
        regions.unregister("c", "cuda")
    with pytest.raises(ConchError, match=r"^Failed to unregister the following cuda shared memory regions: c ,$"):
        regions.unregister("", "cuda")
    assert len(part.read()) == 4
    del part
    regions.unregister("c", "cuda")
    with pytest.raises(NotFound, match="Unable to find cuda shared memory region: 'c'"):
        regions.status("c", "cuda")
    regions.unregister("", "cuda")
    assert not regions.status("", "cuda")


@pytest.mark.skipif(find_spec("cuda") is not None, reason="cuda-bindings are installed")
def test_missing_package_is_reported() -> None:
    with pytest.raises(InvalidRequest) as caught:  # Triton's status on a machine without GPUs
        SharedMemory().register_cuda("c", HANDLE, 0, 4)
    assert caught.value.message == (
        "failed to register shared memory region: invalid args: CUDA region 'c', GPUs not supported: the package "
        "'cuda-bindings' is not installed; register system shared memory"
    )


class Runtime:
    """What `conch.server.backends.cuda_runtime` has, on a machine with two GPUs."""

    @staticmethod
    def device_count() -> int:
        return 2


@pytest.mark.parametrize(
    ("handle", "device", "text"),
    [
        (HANDLE[:63], 0, "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t, which has 64 bytes; got 63"),
        (HANDLE + b"x", 0, "got 65"),
        (b"", 0, "got 0"),
        (HANDLE, 2, "there is no GPU 2: this machine has 2, counted from 0"),
        (HANDLE, -1, "there is no GPU -1"),
    ],
)
def test_invalid_handle_is_rejected(monkeypatch: pytest.MonkeyPatch, handle: bytes, device: int, text: str) -> None:
    monkeypatch.setattr("conch.server.core.shared_memory.cuda_regions.import_module", lambda _: Runtime)
    with pytest.raises(ConchError) as caught:
        open_memory(handle, device)
    assert text in caught.value.message
