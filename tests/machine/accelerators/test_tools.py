"""Tools that work, hang, flood, fail and exit; all are scripts on PATH."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conch.machine.accelerators.collectors import BUILT_IN, AcceleratorAbsent, CollectorError, create_collector, vendors
from conch.machine.accelerators.vendors.tool import ToolStream, run_tool
from tests.machine.accelerators.tools import ToolFolder

# The tool of each vendor: a script that answers as the tool does.
WORKING = {
    "amd": (
        "amd-smi",
        """
if arguments[0] == "list":
    print('[{"gpu": 0, "bdf": "0000:03:00.0", "uuid": "u0"}]')
elif arguments[0] == "static":
    print('[{"gpu": 0, "asic": {"market_name": "AMD Radeon AI PRO R9700"}}]')
else:
    recorded(f"amd_{arguments[0]}.json")
""",
    ),
    "ascend": (
        "npu-smi",
        """
recorded("ascend_910b2.txt" if arguments == ["info"] else f"ascend_{arguments[2]}.txt")
""",
    ),
    "cambricon": (
        "cnmon",
        """
if arguments:
    Path("cnmon_info.json").write_text('{"CnmonInfo": [{"CardNum": 0, "UUID": "0-0"}, {"CardNum": 1, "UUID": "1-1"}]}')
else:
    recorded("cambricon_370.txt")
""",
    ),
    "intel": (
        "xpu-smi",
        """
if arguments[:2] == ["discovery", "-d"]:
    print('{"memory_physical_size_byte": "51539607552"}')
elif arguments[0] == "ps":
    print('{"device_util_by_proc_list": []}')
elif arguments[0] == "discovery":
    recorded("intel_discovery.json")
else:
    recorded("intel_dump.txt")
    sys.stdout.flush()
    while True:
        time.sleep(0.05)
        print("15:44:37.481,    0, 15.47, 2450, 2.03, 82.44", flush=True)
""",
    ),
    "neuron": (
        "neuron-monitor",
        """
assert json.loads(Path(arguments[1]).read_text())["period"] == "1s"
recorded_report = (Path(sys.argv[0]).parent / "report").read_text()
while True:
    print(recorded_report, flush=True)
    time.sleep(0.05)
""",
    ),
}


def install(tools: ToolFolder, vendor: str) -> None:
    program, body = WORKING[vendor]
    tools.write(program, body)
    report = (Path(__file__).parent / "recorded" / "neuron_report.json").read_text()
    (tools.folder / "report").write_text(report.replace("\n", ""))


@pytest.mark.parametrize("vendor", WORKING)
def test_a_collector_samples_its_tool(tools: ToolFolder, vendor: str) -> None:
    install(tools, vendor)
    collector = create_collector(vendor)
    collector.start()
    try:
        for _ in range(2):
            sample = collector.sample()
            assert sample.vendor == vendor
            assert all(device.readings["memory_total_bytes"] > 0 for device in sample.devices)
    finally:
        collector.close()


@pytest.mark.parametrize("vendor", WORKING)
def test_a_machine_without_the_tool_has_no_such_accelerator(vendor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(AcceleratorAbsent, match=f"'{WORKING[vendor][0]}' is not on PATH"):
        create_collector(vendor).start()


@pytest.mark.parametrize("vendor", WORKING)
def test_a_tool_that_fails_is_an_error(tools: ToolFolder, vendor: str) -> None:
    program = WORKING[vendor][0]
    tools.write(program, 'print("no driver", file=sys.stderr)\nsys.exit(3)\n')
    collector = create_collector(vendor)
    with pytest.raises(CollectorError, match=rf"{program}.* exited with status 3"):
        collector.start()
    collector.close()


def test_a_tool_that_fails_once_recovers(tools: ToolFolder) -> None:
    install(tools, "amd")
    collector = create_collector("amd")
    collector.start()
    tools.write("amd-smi", "sys.exit(1)\n")
    with pytest.raises(CollectorError, match="amd-smi metric --json exited with status 1"):
        collector.sample()
    install(tools, "amd")
    assert collector.sample().devices


def test_every_built_in_collector_has_a_test() -> None:
    assert set(WORKING) == set(BUILT_IN) - {"nvidia"}
    assert set(WORKING) <= set(vendors())


@pytest.mark.slow
def test_a_hanging_tool_is_killed_with_its_children(tools: ToolFolder, tmp_path: Path) -> None:
    child = tmp_path / "child"
    tools.write(
        "hang-smi",
        f"import subprocess\nchild = subprocess.Popen(['sleep', '600'])\n"
        f"Path({str(child)!r}).write_text(str(child.pid))\ntime.sleep(600)\n",
    )
    for timeout_s in (2, 30):  # a busy machine may not start the child within the shorter one
        with pytest.raises(CollectorError, match=rf"hang-smi --json did not finish within {timeout_s} s"):
            run_tool("hang-smi", "--json", timeout_s=timeout_s)
        if child.exists():
            break
    wait_for_exit(int(child.read_text()))


@pytest.mark.slow
def test_a_tool_whose_child_keeps_the_pipe_is_not_awaited(tools: ToolFolder, tmp_path: Path) -> None:
    tools.write("fork-smi", "import subprocess\nsubprocess.Popen(['sleep', '600'])\nprint('{}')\n")
    with pytest.raises(CollectorError, match="did not finish within 1 s"):
        run_tool("fork-smi", timeout_s=1)


def test_a_tool_ends_with_the_sampling_process(tools: ToolFolder, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    tools.write("hang-smi", f"Path({str(pid)!r}).write_text(str(os.getpid()))\ntime.sleep(600)\n")
    script = "from conch.machine.accelerators.vendors.tool import run_tool; run_tool('hang-smi', timeout_s=600)"
    parent = subprocess.Popen([sys.executable, "-c", script])
    deadline = time.monotonic() + 60
    while not (pid.exists() and pid.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    parent.kill()
    parent.wait()
    wait_for_exit(int(pid.read_text()))


def test_a_flooding_tool_is_killed(tools: ToolFolder) -> None:
    tools.write("flood-smi", "while True:\n    print('x' * 1000)\n")
    with pytest.raises(CollectorError, match="flood-smi wrote more than 4 MiB"):
        run_tool("flood-smi", timeout_s=60)


def test_a_tool_that_cannot_be_run_is_an_error(tools: ToolFolder) -> None:
    path = tools.write("odd-smi", "")
    path.write_text("#!/nonexistent/interpreter\n")
    with pytest.raises(CollectorError, match="odd-smi cannot be run: No such file"):
        run_tool("odd-smi")


def test_a_killed_tool_names_its_signal(tools: ToolFolder) -> None:
    tools.write("crash-smi", "os.kill(os.getpid(), 11)\n")
    with pytest.raises(CollectorError, match="crash-smi was killed by SIGSEGV"):
        run_tool("crash-smi")


def test_a_stream_returns_the_lines_since_the_last_call(tools: ToolFolder) -> None:
    tools.write("stream-smi", "for n in range(3):\n    print(n, flush=True)\ntime.sleep(600)\n")
    stream = ToolStream("stream-smi")
    stream.start()
    lines: list[bytes] = []
    while len(lines) < 3:
        lines += stream.lines(60)
    assert lines == [b"0", b"1", b"2"]
    with pytest.raises(CollectorError, match=r"stream-smi wrote no report within 0.2 s; restarting"):
        stream.lines(0.2)
    assert stream.lines(60)[0] == b"0"  # restarted
    stream.close()


def test_a_stream_that_ends_is_restarted(tools: ToolFolder) -> None:
    tools.write("short-smi", "print('report', flush=True)\nsys.exit(4)\n")
    stream = ToolStream("short-smi")
    stream.start()
    process = stream._process
    assert process is not None
    wait_for_exit(process.pid)
    with pytest.raises(CollectorError, match="short-smi exited with status 4"):
        stream.lines(60)
    tools.write("short-smi", "print('report', flush=True)\ntime.sleep(600)\n")
    assert stream.lines(60) == [b"report"]
    stream.close()


@pytest.mark.parametrize("end", ["''", "chr(10)"], ids=["one line", "many lines"])
def test_a_stream_that_floods_is_killed(tools: ToolFolder, end: str) -> None:
    tools.write("flood-smi", f"while True:\n    sys.stdout.write('x' * 65536 + {end})\n")
    stream = ToolStream("flood-smi")
    stream.start()
    process = stream._process
    assert process is not None
    wait_for_exit(process.pid)
    with pytest.raises(CollectorError, match=r"flood-smi wrote (a line of )?more than 4 MiB"):
        stream.lines(60)
    stream.close()


def wait_for_exit(pid: int) -> None:
    """Wait until a process has exited; a zombie has."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return
        if state in "ZX":
            return
        time.sleep(0.02)
    os.kill(pid, 9)
    pytest.fail(f"process {pid} is still running")
