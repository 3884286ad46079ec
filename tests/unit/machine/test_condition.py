"""Conditions of the machine, from files as Linux writes them."""

import subprocess
from pathlib import Path

import pytest

from conch.machine import condition
from conch.machine.condition import ClockWatch, Throttling


def test_throttling_is_judged_by_the_periods_since_the_last_call(tmp_path: Path) -> None:
    def write(periods: int, throttled: int) -> None:
        file.write_text(f"usage_usec 5\nnr_periods {periods}\nnr_throttled {throttled}\n")

    file = tmp_path / "cpu.stat"
    write(1000, 900)  # before the server started
    throttling = Throttling(file)
    assert throttling() == ""
    write(1100, 906)
    assert throttling() == "the CPU quota of the control group stopped threads in 6 of 100 periods"
    write(1200, 907)
    assert throttling() == ""
    file.unlink()
    assert throttling() == ""


def test_step_of_the_clock_is_seen_once() -> None:
    offsets = iter([100.0, 100.2, 103.2, 103.2])
    clock = ClockWatch(lambda: next(offsets))
    assert [clock.step() for _ in range(3)] == ["", "the wall clock was stepped by +3.0 s", ""]


@pytest.mark.parametrize(
    ("kib", "message"), [(0, ""), (1024, ""), (100 * 1024, "100 MiB of this process are swapped out")]
)
def test_swapped_pages(tmp_path: Path, kib: int, message: str) -> None:
    status = tmp_path / "status"
    status.write_text(f"Name:\tconch\nVmSwap:\t{kib} kB\n")
    assert condition.swapped(status) == message
    assert condition.swapped(tmp_path / "none") == ""


def test_huge_pages(tmp_path: Path) -> None:
    file = tmp_path / "enabled"
    file.write_text("always [madvise] never\n")
    assert condition.huge_pages_off(file) == ""
    file.write_text("always madvise [never]\n")
    assert condition.huge_pages_off(file) == f"{file} is never"


def test_missing_shared_memory_is_named(tmp_path: Path) -> None:
    assert "is not available: No such file" in condition.shared_memory_small(tmp_path / "shm")


def test_certificate_near_its_end(tmp_path: Path) -> None:
    cert = tmp_path / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=conch", "-days", "30"]
    subprocess.run([*command, "-keyout", str(tmp_path / "key.pem"), "-out", str(cert)], check=True, capture_output=True)
    created = cert.stat().st_mtime
    assert condition.certificate_expiring(str(cert), lambda: created) == ""
    assert "expires at" in condition.certificate_expiring(str(cert), lambda: created + 17 * 86400)
    assert "expired at" in condition.certificate_expiring(str(cert), lambda: created + 31 * 86400)
    assert condition.certificate_expiring(str(tmp_path / "none")) == ""
