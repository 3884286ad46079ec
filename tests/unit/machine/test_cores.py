"""How many cores may be kept busy."""

from pathlib import Path

import pytest

from conch.machine.cores import usable_cores


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(8), raising=False)


@pytest.mark.parametrize(
    ("quota", "cores"),
    [
        ("max 100000", 8),
        ("100000 100000", 1),
        ("150000 100000", 2),
        ("10000 100000", 1),
        ("9900000 100000", 8),
        ("", 8),
    ],
)
def test_a_container_may_have_less_than_the_machine(tmp_path: Path, quota: str, cores: int) -> None:
    (tmp_path / "cpu.max").write_text(quota)
    assert usable_cores(tmp_path / "cpu.max") == cores


def test_without_a_quota(tmp_path: Path) -> None:
    assert usable_cores(tmp_path / "nothing") == 8
