"""System calls of confined models: which are refused, and that models, threads and programs still work."""

import ctypes
import errno
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conch.server.backends.child.conch_child.ipc import system_calls
from conch.server.backends.child.conch_child.ipc.sandbox import landlock_abi
from tests.server.backends.onnxruntime.onnx_models import FP32, write_identity
from tests.server.backends.python.running import running
from tests.server.backends.python.test_sandbox import EVALUATOR, evaluated

pytestmark = pytest.mark.skipif(not landlock_abi(), reason="the kernel has no Landlock")

CALLS = """
    def errno_of(number, *arguments):
        libc = ctypes.CDLL(None, use_errno=True)
        libc.syscall.restype = ctypes.c_long
        values = [a if isinstance(a, bytes) else ctypes.c_long(a) for a in arguments]
        ctypes.set_errno(0)
        result = libc.syscall(ctypes.c_long(number), *values)
        return 0 if result >= 0 else ctypes.get_errno()

    def raised(call, *arguments):
        try:
            call(*arguments)
        except OSError as error:
            return error.errno
        return 0

    class TritonPythonModel:
"""
MODEL = EVALUATOR.replace("\n    class TritonPythonModel:\n", CALLS)
COLUMN = 0 if os.uname().machine == "x86_64" else 1


@pytest.fixture
def outside(directory: Path) -> Iterator[Path]:
    """A file of this user that a model may not even read."""
    file = directory.parent / "outside"
    file.write_text("x")
    file.chmod(0o600)
    os.utime(file, (1, 1))
    yield file
    status = file.stat()
    assert (status.st_mode & 0o777, status.st_mtime) == (0o600, 1)


async def test_a_model_changes_no_attributes_outside(
    directory: Path,
    parameters: dict[str, str],
    outside: Path,
) -> None:
    name, folder = str(outside), str(directory)
    denied = [
        f"os.chmod({name!r}, 0o777)", f"os.chmod({folder!r}, 0o777)", f"os.utime({name!r}, (0, 0))",
        f"os.utime({folder!r}, (0, 0))", f"os.chown({name!r}, 0, 0)", f"os.lchown({name!r}, 0, 0)",
        f"os.setxattr({name!r}, 'user.x', b'1')", f"os.removexattr({name!r}, 'user.x')",
        f"os.fchmod(os.open({folder!r}, os.O_RDONLY), 0o777)", f"os.utime(os.open({folder!r}, os.O_RDONLY), (0, 0))",
        f"os.setxattr({folder!r}, 'user.x', b'1', follow_symlinks=False)",
        "os.chmod(tempfile.mkdtemp(), 0o777)",
    ]  # fmt: skip
    async with running(directory, MODEL, parameters=parameters, settings={"landlock": "true"}) as runner:
        for text in denied:
            call, _, arguments = text.partition("(")
            error_number = await evaluated(runner, f"raised(lambda: {call}({arguments})")
            assert error_number == str(errno.EPERM), text
        # Also of programs that the model starts.
        assert await evaluated(runner, f"subprocess.run(['chmod', '777', {name!r}]).returncode") == "1"
        assert await evaluated(runner, f"subprocess.run(['touch', '-d', '@5', {folder!r}]).returncode") == "1"


@pytest.mark.parametrize("settings", [{"landlock": "true"}, {"open-file-limit": "500"}])
async def test_dangerous_calls_are_refused(directory: Path, settings: dict[str, str]) -> None:
    async with running(directory, MODEL, settings=settings) as runner:
        refused = {**system_calls._DANGEROUS, **(system_calls._ATTRIBUTES if "landlock" in settings else {})}
        for name, numbers in refused.items():
            if numbers[COLUMN] >= 0:
                error_number = await evaluated(runner, f"errno_of({numbers[COLUMN]}, -1, -1, -1, -1, -1)")
                assert error_number == str(errno.EPERM), name
        for name, numbers in system_calls._ON_PROCESSES.items():
            error_number = await evaluated(runner, f"errno_of({numbers[COLUMN]}, os.getppid(), 0, 0, 0, 0)")
            assert error_number == str(errno.EPERM), name
        others = {
            "errno_of(435, 0, 0)": errno.ENOSYS,  # clone3
            "raised(os.setpriority, os.PRIO_PROCESS, os.getppid(), 19)": errno.EPERM,
            "raised(os.setpriority, os.PRIO_USER, 0, 19)": errno.EPERM,
            "raised(os.setpriority, os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0))": 0,
            "raised(resource.prlimit, os.getppid(), resource.RLIMIT_NOFILE, (0, 0))": errno.EPERM,
            "raised(resource.setrlimit, resource.RLIMIT_STACK, resource.getrlimit(resource.RLIMIT_STACK))": 0,
            "raised(os.chmod, tempfile.mkdtemp(), 0o700)": errno.EPERM if "landlock" in settings else 0,
        }
        unshare, clone, ioctl = (n[COLUMN] for n in (system_calls._UNSHARE, system_calls._CLONE, system_calls._IOCTL))
        for bit in (0x80, 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
            others[f"errno_of({unshare}, {bit})"] = errno.EPERM
            if bit != 0x80:
                others[f"errno_of({clone}, {bit | 17}, 0, 0, 0, 0)"] = errno.EPERM
        others[f"errno_of({unshare}, 0x200)"] = 0  # CLONE_FS
        others[f"errno_of({ioctl}, 0, 0x5412, b'x')"] = errno.EPERM  # TIOCSTI
        if COLUMN == 0:
            others["errno_of(0x40000000 | 39)"] = errno.ENOSYS  # x32's getpid
        for text, expected in others.items():
            assert await evaluated(runner, text) == str(expected), text


def test_calls_of_another_architecture_are_refused() -> None:
    """`int 0x80` on x86-64 has other numbers: 15 is chmod."""
    if COLUMN:
        pytest.skip("needs x86-64")
    code = bytes.fromhex("b80f000000cd80c3")  # mov eax, 15; int 0x80; ret
    script = (
        "import ctypes, mmap, sys\n"
        f"sys.path.insert(0, {str(Path(system_calls.__file__).parents[2])!r})\n"
        "from conch_child.ipc import prctl\n"
        "from conch_child.ipc.system_calls import refuse_dangerous_calls\n"
        "prctl.renounce_privileges()\n"
        "assert refuse_dangerous_calls(attributes=True)\n"
        "page = mmap.mmap(-1, 4096, prot=7)\n"
        f"page.write({code!r})\n"
        "print(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))())\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.stdout == f"{-errno.ENOSYS}\n", result.stderr


async def test_what_models_need_works(directory: Path, parameters: dict[str, str]) -> None:
    write_identity(directory, FP32, [None, 2])
    settings = {"landlock": "true", "landlock-write": "/dev/shm"}
    works = {
        f"__import__('onnxruntime').InferenceSession({str(directory / '1/model.onnx')!r}).run("
        "None, {'IN': np.ones((1, 2), np.float32)})[0].tolist()": "[[1.0, 1.0]]",
        "float(__import__('torch').ones(8).sum())": "8.0",
        "__import__('openvino').Core().available_devices[0]": "'CPU'",
        "len(list(__import__('concurrent.futures').futures.ThreadPoolExecutor(4).map(str, range(100))))": "100",
        "__import__('multiprocessing').get_context('spawn').Pool(2).map(abs, [-1, -2])": "[1, 2]",
        "__import__('multiprocessing').get_context('fork').Pool(2).map(abs, [-1, -2])": "[1, 2]",
        "subprocess.run('echo x > $TMPDIR/y && cat $TMPDIR/y', shell=True, capture_output=True).stdout": r"b'x\n'",
        "__import__('shutil').copyfile(tempfile.gettempdir() + '/y', tempfile.gettempdir() + '/z')[-2:]": "'/z'",
        "__import__('asyncio').run(__import__('asyncio').sleep(0, 5))": "5",
        "len(__import__('socket').socketpair())": "2",
        "len(tempfile.TemporaryDirectory().name) > 0": "True",
    }
    async with running(directory, MODEL, parameters=parameters, settings=settings) as runner:
        for text, expected in works.items():
            assert await evaluated(runner, text) == expected, text


def test_numbers_are_those_of_the_kernel() -> None:
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    generic = Path("/usr/include/asm-generic/unistd.h")
    if not header.exists() or not generic.exists():
        pytest.skip("the kernel's headers are not installed: apt-get install linux-libc-dev")
    tables = {**system_calls._ATTRIBUTES, **system_calls._DANGEROUS, **system_calls._ON_PROCESSES}
    for column, text in enumerate((header.read_text(), generic.read_text())):
        known = {name: int(number) for name, number in re.findall(r"__NR(?:3264)?_(\w+)\s+(\d+)", text)}
        for name, numbers in tables.items():
            if name in known:
                assert numbers[column] == known[name], name
    assert ctypes.sizeof(system_calls._Instruction) == 8
