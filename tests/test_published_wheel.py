"""The wheels of `make wheel` in bare Debian systems without a compiler: of x86-64, and of arm64 under emulation."""

import json
import os
import platform
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tools.wheel import ROOT

from tests.support.ports import free_port

pytestmark = [
    pytest.mark.timeout(3600),
    pytest.mark.skipif(
        "CONCH_TEST_WHEEL" not in os.environ,
        reason="compiles two wheels and makes two Debian systems, in minutes: make test-wheel",
    ),
]

# The processor in names of wheels → in Debian's.
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
WAIT_S = 120
IMAGE = {"inputs": [{"name": "image", "shape": [1, 8, 8], "datatype": "FP32", "data": [0] * 64}]}
TEXT = {"inputs": [{"name": "INPUT_TEXT", "shape": [1, 1], "datatype": "BYTES", "data": ["hello"]}]}


@pytest.fixture(scope="module", params=ARCHITECTURES)
def system(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The root of a Debian system with Python, the wheel and two example models, but no compiler."""
    for program in ("mmdebstrap", "qemu-aarch64-static"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed: apt-get install mmdebstrap qemu-user-static")
    if os.geteuid():
        pytest.skip("chroot needs root")
    machine = request.param
    if machine == "aarch64" and not _emulates_arm64():
        folder = "/proc/sys/fs/binfmt_misc"
        pytest.skip(
            f"the kernel has no entry for programs of arm64: mount -t binfmt_misc binfmt_misc {folder}; "
            f"cat /usr/lib/binfmt.d/qemu-aarch64.conf > {folder}/register"
        )
    folder = tmp_path_factory.mktemp(machine)
    _run(sys.executable, "-m", "tools.wheel", f"--machine={machine}", f"--output={folder}")
    (wheel,) = folder.glob("*.whl")
    root = folder / "root"
    # Unpacked only: the scripts of packages would run for minutes under emulation.
    suite, packages = "bookworm", "python3,ca-certificates,libstdc++6,libgcc-s1,zlib1g,libexpat1,dash,coreutils"
    architecture = f"--architectures={ARCHITECTURES[machine]}"
    _run("mmdebstrap", "--variant=extract", architecture, f"--include={packages}", suite, str(root))
    _install(wheel, machine, root)
    # Emulation lacks the system call by which the server adopts processes of Python models.
    for model in ("digits", "simple_echo") if machine == platform.machine() else ("digits",):
        shutil.copytree(ROOT / "examples" / "models" / model, root / "models" / model)
    with _mounts(root):
        yield root


def test_the_wheel_runs_compiled_without_a_compiler(system: Path) -> None:
    assert not list(system.glob("usr/bin/*gcc*"))
    assert "(compiled)" in _conch(system, "--version").communicate(timeout=WAIT_S)[0]


def test_the_wheel_serves_models(system: Path) -> None:
    ports = {name: free_port() for name in ("http", "grpc", "metrics")}
    server = _conch(system, "serve", "--model-repository=/models", *(f"--{name}-port={ports[name]}" for name in ports))
    try:
        url = f"http://127.0.0.1:{ports['http']}/v2/models"
        recognized = _ask(server, f"{url}/digits/infer", IMAGE)
        assert [output["shape"] for output in recognized["outputs"]] == [[1, 10]]
        if (system / "models" / "simple_echo").exists():
            assert _ask(server, f"{url}/simple_echo/infer", TEXT)["outputs"][0]["data"] == ["echo: hello"]
    finally:
        server.terminate()
        server.communicate(timeout=WAIT_S)


def _install(wheel: Path, machine: str, root: Path) -> None:
    """Put the wheel and what it needs for that processor into the system, as pip there would; no source is compiled."""
    glibc = ("2014", "_2_17", "_2_27", "_2_28")
    platforms = [f"--platform=manylinux{version}_{machine}" for version in glibc]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary=:all:"]
    _run(*pip, *platforms, "--python-version=3.11", f"--target={root / 'opt'}", f"{wheel}[onnxruntime]")


def _emulates_arm64() -> bool:
    # The name of the interpreter depends on the version of qemu-user-static.
    return any("interpreter" in path.read_text() for path in Path("/proc/sys/fs/binfmt_misc").glob("*aarch64*"))


@contextmanager
def _mounts(root: Path) -> Iterator[None]:
    """Mount what a process expects: /proc and /dev."""
    with ExitStack() as stack:
        for kind, source in (("proc", "proc"), ("dev", "/dev")):
            target = root / kind
            target.mkdir(exist_ok=True)
            _run("mount", *(["-t", "proc"] if kind == "proc" else ["--rbind", "--make-rslave"]), source, str(target))
            stack.callback(_run, "umount", "--lazy", str(target))
        yield


def _conch(root: Path, *arguments: str) -> "subprocess.Popen[str]":
    command = ["chroot", str(root), "/usr/bin/python3.11", "-m", "conch", *arguments]
    return subprocess.Popen(
        command,
        env={"PYTHONPATH": "/opt", "PATH": os.environ["PATH"]},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _ask(server: "subprocess.Popen[str]", url: str, request: object) -> dict[str, list[dict[str, object]]]:
    """Return the answer to a request, which is repeated until the server is ready."""
    end = time.monotonic() + WAIT_S
    while True:
        try:
            with urllib.request.urlopen(url, json.dumps(request).encode()) as answer:
                return json.load(answer)  # type: ignore[no-any-return]
        except urllib.error.URLError:
            if server.poll() is not None or time.monotonic() > end:
                server.kill()
                pytest.fail(server.communicate()[0])
            time.sleep(0.2)


def _run(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-8000:]}\n{done.stderr[-8000:]}"
