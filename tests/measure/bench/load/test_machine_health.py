"""Counters of the client's machine, from files as the kernel writes them."""

from pathlib import Path

import pytest

from conch.measure.bench.load.machine_health import machine_counters

STAT = "cpu  {user} 0 100 1000 0 0 0 {steal} 0 0\ncpu0 1 2 3\n"
V2 = {"proc/self/cgroup": "0::/pod/main\n", "sys/fs/cgroup/pod/main/cpu.stat": "usage_usec 5\nthrottled_usec {us}\n"}
V1 = {
    "proc/self/cgroup": "4:memory:/x\n3:cpu,cpuacct:/docker/1\n",
    "sys/fs/cgroup/cpu,cpuacct/cpu.stat": "nr_throttled 1\nthrottled_time {ns}\n",
}


def write(root: Path, files: dict[str, str], **values: int) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(**values))


@pytest.mark.parametrize("cgroup", [V1, V2], ids=["version 1", "version 2"])
def test_steal_throttling_and_pressure_are_differences(tmp_path: Path, cgroup: dict[str, str]) -> None:
    files = {"proc/stat": STAT, "proc/pressure/cpu": "some avg10=0.00 total={us}\nfull total=0\n", **cgroup}
    write(tmp_path, files, user=100, steal=0, us=1_000_000, ns=1_000_000_000)
    before = machine_counters(tmp_path)
    write(tmp_path, files, user=150, steal=50, us=3_000_000, ns=3_000_000_000)
    after = machine_counters(tmp_path)
    assert after.steal_ratio(before) == 0.5
    assert after.throttled_since(before) == 2.0
    pressure = after.pressure_ratio(before)
    assert pressure is not None
    assert 0 < pressure <= 1


def test_what_the_kernel_does_not_tell_is_unknown(tmp_path: Path) -> None:
    counters = machine_counters(tmp_path)
    assert counters.steal_ratio(counters) is None
    assert counters.throttled_since(counters) is None
    assert counters.pressure_ratio(counters) is None


def test_this_machine_tells_its_steal() -> None:
    before = machine_counters()
    assert machine_counters().steal_ratio(before) is not None
