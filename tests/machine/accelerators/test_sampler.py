"""Supervision of sampling processes: collectors that raise, hang, crash and flood cost their own samples only."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from conch.machine.accelerators.sampler import Sampler
from tests.processes import command_lines, has_ended

TIMEOUT_S = 60
HEAD = """
import os, signal, sys, time
from pathlib import Path
from conch.machine.accelerators.collectors import AcceleratorAbsent, CollectorError, DeviceIdentity, VendorSample
from conch.machine.accelerators.collectors import device_sample

STARTS = Path(os.environ["ACME_STARTS"])

class Acme:
    vendor = "acme"
    samples = 0

    def start(self):
        with STARTS.open("a") as file:
            file.write(".")
        self.starts = len(STARTS.read_text())

    def sample(self):
        self.samples += 1
        self.misbehave()
        devices = [DeviceIdentity("acme", str(i), f"acme-{i}", "Acme 1") for i in range(self.count())]
        return VendorSample("acme", tuple(device_sample(device, {"power_watts": 7.0}) for device in devices))

    def count(self):
        return 1

    def misbehave(self):
        pass

    def close(self):
        pass
"""


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Installs a package with a collector; the argument is what its class has besides."""
    info = tmp_path / "acme-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[conch.accelerators]\nacme = acme_collector:Acme\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("ACME_STARTS", str(tmp_path / "starts"))
    yield lambda body: (tmp_path / "acme_collector.py").write_text(HEAD + body) and None
    assert [line for _, line in command_lines(os.getpid()) if "sampling_process" in " ".join(line)] == []


@asynccontextmanager
async def sampled(timeout_s: float = TIMEOUT_S, vendor: str = "acme") -> AsyncIterator[Sampler]:
    sampler = Sampler(vendor, 0.05, timeout_s=timeout_s, start_timeout_s=timeout_s, first_delay_s=0.05)
    sampler.start()
    try:
        yield sampler
    finally:
        await sampler.stop()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():
            await asyncio.sleep(0.01)


def written() -> str:
    """What collectors have written: a dot for each start."""
    path = Path(os.environ["ACME_STARTS"])
    return path.read_text() if path.exists() else ""


def starts() -> int:
    return len(written())


def is_up(sampler: Sampler) -> bool:
    status = sampler.status()
    return status is not None and status.up


def error_of(sampler: Sampler) -> str:
    status = sampler.status()
    return "" if status is None else status.error


async def test_samples_arrive_and_absent_values_are_counted(acme: Callable[[str], None]) -> None:
    acme("")
    async with sampled() as sampler:
        await until(lambda: is_up(sampler))
        status = sampler.status()
        assert status is not None
        assert sampler.sample is not None
        assert sampler.sample.devices[0].readings == {"power_watts": 7.0}
        assert status.sample_age_s is not None
        assert status.sample_duration_s is not None
        before = status.unsupported["clock_hertz"]
        assert "power_watts" not in status.unsupported
        await until(lambda: (sampler.status() or status).unsupported["clock_hertz"] > before)


RAISES = """
    def misbehave(self):
        if self.starts < 3 and self.samples > 1:
            raise CollectorError("the tool reports nonsense")
"""
CRASHES = """
    def misbehave(self):
        if self.starts < 3 and self.samples > 1:
            os.kill(os.getpid(), signal.SIGSEGV)
"""
PRINTS = """
    def misbehave(self):
        print("a driver's message")
        sys.stderr.write("x" * 200000)
"""
FLOODS = """
    def count(self):
        return 20000 if self.starts < 3 and self.samples > 1 else 1
"""
HANGS = """
    def misbehave(self):
        if self.starts < 3 and self.samples > 1:
            time.sleep(1000)
"""


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (RAISES, "the tool reports nonsense"),
        (CRASHES, "its process exited with status -11"),
        (FLOODS, "its sample exceeds 1048576 bytes"),
    ],
)
async def test_a_collector_that_fails_is_restarted(acme: Callable[[str], None], body: str, error: str) -> None:
    acme(body)
    async with sampled() as sampler:
        await until(lambda: error_of(sampler).startswith(error))
        assert not is_up(sampler)
        assert sampler.sample is None
        status = sampler.status()
        assert status is not None
        assert status.sample_age_s is not None  # of the last good one
        await until(lambda: starts() == 3 and is_up(sampler))


HANGS_AT_START = """
    def start(self):
        with STARTS.open("a") as file:
            file.write(".")
        if len(STARTS.read_text()) < 3:
            time.sleep(1000)
"""


@pytest.mark.slow
@pytest.mark.parametrize("body", [HANGS, HANGS_AT_START])
async def test_a_collector_that_hangs_is_killed_and_restarted(acme: Callable[[str], None], body: str) -> None:
    acme(body)
    async with sampled(timeout_s=3) as sampler:
        await until(lambda: error_of(sampler) == "it does not respond; the driver or tool hangs")
        assert not is_up(sampler)
        assert sampler.sample is None
        await until(lambda: starts() >= 3 and is_up(sampler))


async def test_output_of_a_driver_is_ignored(acme: Callable[[str], None]) -> None:
    acme(PRINTS)
    async with sampled() as sampler:
        await until(lambda: is_up(sampler))
        for _ in range(3):
            seen = sampler.sample
            await until(lambda seen=seen: sampler.sample is not seen)  # type: ignore[misc]
        assert starts() == 1


async def test_an_absent_vendor_has_no_status(acme: Callable[[str], None], tmp_path: Path) -> None:
    acme('    def start(self):\n        STARTS.write_text(".")\n        raise AcceleratorAbsent("none")\n')
    async with sampled() as sampler:
        await until(lambda: starts() == 1)
        await asyncio.sleep(0.2)
        assert sampler.status() is None
        assert starts() == 1


async def test_a_collector_that_cannot_be_imported_is_reported(acme: Callable[[str], None]) -> None:
    acme("raise ImportError('no acme library')")
    async with sampled() as sampler:
        await until(lambda: "no acme library" in error_of(sampler))
        assert not is_up(sampler)


async def test_lost_devices_are_down_until_they_answer(acme: Callable[[str], None]) -> None:
    acme("    def count(self):\n        return 1 if self.samples % 40 >= 20 else 2\n")
    async with sampled() as sampler:
        seen: set[tuple[tuple[str, bool], ...]] = set()

        def collected() -> bool:
            seen.add(tuple((device.uuid, up) for device, up in sampler.devices()))
            return len(seen) >= 3

        await until(collected)
    assert seen == {(), (("acme-0", True), ("acme-1", True)), (("acme-0", True), ("acme-1", False))}


async def test_the_process_dies_with_its_parent(acme: Callable[[str], None], tmp_path: Path) -> None:
    acme("    def misbehave(self):\n        Path(os.environ['ACME_STARTS']).write_text(str(os.getpid()))\n")
    code = (
        "import asyncio\nfrom conch.machine.accelerators.sampler import Sampler\n"
        "async def main():\n    Sampler('acme', 0.05).start()\n    await asyncio.sleep(1000)\nasyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    await until(lambda: written().isdecimal())
    child = int(written())
    parent.kill()
    await parent.wait()
    await until(lambda: has_ended(child))


@pytest.mark.slow
async def test_it_can_be_stopped_at_any_time(acme: Callable[[str], None]) -> None:
    """A process that ends at the moment of the stop must not hide the cancellation."""
    acme('    def start(self):\n        raise CollectorError("no driver")\n')
    for number in range(16):
        async with asyncio.timeout(TIMEOUT_S):
            async with sampled():
                await asyncio.sleep(number * 0.02)
