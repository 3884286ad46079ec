"""What a confined model can and cannot do: its user, its files, its limits; forked and with a separate interpreter."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from conch.base.errors import ConfigError, ModelLoadError
from conch.domain.tensor import Tensor
from conch.server.backends.child.conch_child.ipc.sandbox import landlock_abi
from tests.server.backends.engines.driving import gone
from tests.server.backends.engines.driving import running as running_engine
from tests.server.backends.python.running import Runner, running

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the user of a process")
with_landlock = pytest.mark.skipif(not landlock_abi(), reason="the kernel has no Landlock")
NOBODY = 65534

# Evaluates what it is asked, and answers with the value, or with the name of the exception.
EVALUATOR = """
    import ctypes
    import os
    import resource
    import signal
    import subprocess
    import tempfile
    import numpy as np
    import triton_python_backend_utils as pb_utils

    def prctl(option):
        return ctypes.CDLL(None).prctl(option, 0, 0, 0, 0)

    def pdeathsig():
        number = ctypes.c_int()
        ctypes.CDLL(None).prctl(2, ctypes.byref(number))
        return number.value

    class TritonPythonModel:
        def execute(self, requests):
            (request,) = requests
            text = request.inputs()[0].as_numpy()[0].decode()
            try:
                found = repr(eval(text))
            except BaseException as error:
                found = type(error).__name__
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([found], dtype=object))])]
"""


async def evaluated(runner: Runner, text: str) -> str:
    response = await runner.infer(Tensor.from_numpy("IN", np.array([text.encode()], dtype=object)))
    return bytes(response.outputs[0].to_numpy()[0]).decode()


@with_landlock
async def test_landlock_leaves_a_model_its_own_files(directory: Path, parameters: dict[str, str]) -> None:
    shared = directory.parent / "shared"
    shared.mkdir()
    settings = {"landlock": "true", "landlock-read": str(shared)}
    async with running(directory, EVALUATOR, parameters=parameters, settings=settings) as runner:
        temporary = (await evaluated(runner, "tempfile.gettempdir()")).strip("'")
        assert Path(temporary).name.startswith("conch-sandbox-")
        assert await evaluated(runner, f"len(os.listdir({str(directory)!r}))") == "1"
        assert await evaluated(runner, f"os.listdir({str(shared)!r})") == "[]"
        assert await evaluated(runner, "open(tempfile.gettempdir() + '/mine', 'w').write('x')") == "1"
        assert await evaluated(runner, "subprocess.run(['true']).returncode") == "0"
        assert await evaluated(runner, "__import__('sqlite3').__name__") == "'sqlite3'"
        denied = [
            f"open({str(directory.parent / 'beside')!r}).read()",
            f"os.listdir({str(directory.parent)!r})",
            f"open({str(directory / 'new')!r}, 'w')",
            f"open({str(shared / 'new')!r}, 'w')",
            "open('/etc/shadow').read()",
            "open('/tmp/conch-escaped', 'w')",
            f"subprocess.check_output(['cat', {str(directory.parent / 'beside')!r}])",
            "open(f'/proc/{os.getppid()}/environ', 'rb').read()",
        ]
        for text in denied:
            assert await evaluated(runner, text) in ("PermissionError", "CalledProcessError"), text
        if landlock_abi() >= 6:
            assert await evaluated(runner, "os.kill(os.getppid(), 0)") == "PermissionError"
    await gone([Path(temporary)])  # a thread removes it


@as_root
async def test_a_model_can_run_as_another_user(directory: Path) -> None:
    async with running(directory, EVALUATOR, settings={"user": "nobody", "process-limit": "200"}) as runner:
        assert await evaluated(runner, "os.getresuid()") == str((NOBODY,) * 3)
        assert await evaluated(runner, "0 in os.getgroups() or os.getgid()") == str(NOBODY)
        assert await evaluated(runner, "os.setuid(0)") == "PermissionError"
        assert await evaluated(runner, "prctl(39)") == "1"  # PR_GET_NO_NEW_PRIVS
        assert await evaluated(runner, "pdeathsig()") == "9"
        assert await evaluated(runner, "resource.getrlimit(resource.RLIMIT_NPROC)") == "(200, 200)"
        assert await evaluated(runner, f"os.listdir({str(directory)!r})") == "['1']"
        assert await evaluated(runner, "open(tempfile.gettempdir() + '/mine', 'w').write('x')") == "1"
        for text in (f"open({str(directory / 'new')!r}, 'w')", "os.kill(os.getppid(), 0)", "open('/etc/shadow')"):
            assert await evaluated(runner, text) == "PermissionError", text
        assert await evaluated(runner, "os.listdir(f'/proc/{os.getppid()}/fd')") == "PermissionError"


async def test_limits_are_hard_and_a_model_may_lower_them(directory: Path, parameters: dict[str, str]) -> None:
    parameters = {**parameters, "open-file-limit": "40", "memory-limit-bytes": "999999999999"}
    settings = {"memory-limit-bytes": str(400 << 20), "open-file-limit": "100"}
    async with running(directory, EVALUATOR, parameters=parameters, settings=settings) as runner:
        assert await evaluated(runner, "resource.getrlimit(resource.RLIMIT_NOFILE)") == "(40, 40)"
        assert await evaluated(runner, "resource.getrlimit(resource.RLIMIT_CORE)") == "(0, 0)"
        assert await evaluated(runner, "len([os.dup(0) for _ in range(50)])") == "OSError"
        assert await evaluated(runner, "len(bytearray(600 << 20))") == "MemoryError"
        assert await evaluated(runner, "len(bytearray(50 << 20))") == str(50 << 20)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"landlock": "yes"}, "landlock=yes: must be true or false"),
        ({"landlock-read": "models"}, "'models' must be an absolute path that exists"),
        ({"memory-limit-bytes": "1g"}, "memory-limit-bytes=1g: must be a positive whole number"),
        ({"open-file-limit": "0"}, "must be a positive whole number"),
        pytest.param({"user": "no-such-user"}, "unknown user or group", marks=as_root),
        pytest.param({"process-limit": "5"}, "does not apply to root", marks=as_root),
    ],
)
async def test_settings_that_make_no_sense(directory: Path, settings: dict[str, str], words: str) -> None:
    with pytest.raises((ConfigError, ModelLoadError), match=words):
        async with running(directory, EVALUATOR, settings=settings):
            pass


async def test_a_kernel_without_landlock_is_named(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conch.server.backends.processes.sandbox.landlock_abi", lambda: 0)
    with pytest.raises(ModelLoadError, match=r"which this kernel does not have: it takes Linux 5\.13 or newer"):
        async with running(directory, EVALUATOR, settings={"landlock": "true"}):
            pass


@with_landlock
async def test_engines_can_be_confined(directory: Path) -> None:
    (directory / "1").mkdir()
    (directory / "1" / "model.json").write_text(json.dumps({}))
    settings = {"landlock": "true", "open-file-limit": "64"}
    async with running_engine("scripted", directory / "1", settings) as engine:
        pid = engine._processes.current.pid  # type: ignore[attr-defined]
        assert psutil.Process(pid).rlimit(psutil.RLIMIT_NOFILE) == (64, 64)
        assert all(not any(owned) for owned in capabilities(pid))


def capabilities(pid: int) -> list[list[int]]:
    """The capabilities that a process has, inheritable, permitted and effective ones."""
    status = Path(f"/proc/{pid}/status").read_text()
    return [
        [int(line.split()[1], 16)] for line in status.splitlines() if line.startswith(("CapInh", "CapPrm", "CapEff"))
    ]


DEEP = """
    def dig(depth):
        os.chdir(tempfile.gettempdir())
        os.symlink('/usr', 'link')
        for number in range(depth):
            os.mkdir('d' * 200, 0o000 if number == depth - 1 else 0o700)
            open('file', 'w').close()
            if number < depth - 1:
                os.chdir('d' * 200)
        return depth

    class TritonPythonModel:
"""


@with_landlock
@pytest.mark.parametrize("user", [None, pytest.param("nobody", marks=as_root)])
async def test_deep_folders_are_removed_with_few_descriptors(directory: Path, user: str | None) -> None:
    """Far deeper than the limit of descriptors, of recursion, and of a path's length."""
    model = EVALUATOR.replace("\n    class TritonPythonModel:\n", DEEP)
    settings = {"landlock": "true"} | ({"user": user} if user else {})
    async with running(directory, model, settings=settings) as runner:
        temporary = Path((await evaluated(runner, "tempfile.gettempdir()")).strip("'"))
        assert await evaluated(runner, "dig(1500)") == "1500"
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (psutil.Process().num_fds() + 20, limits[1]))
    try:
        await gone([temporary])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert "bin" in os.listdir("/usr")  # noqa: PTH208 - the link was not followed


def test_a_removal_ends_soon_after_the_server(tmp_path: Path) -> None:
    """What a model has left does not keep the process; the rest stays."""
    for number in range(5000):
        (tmp_path / str(number)).touch()
    code = """
import sys, threading
from pathlib import Path
from conch.server.backends.processes import remove_tree
remove_tree.EXIT_S = 0.0
threading.Thread(target=remove_tree.remove_tree, args=(Path(sys.argv[1]),)).start()
"""
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True)
    assert any(tmp_path.iterdir())
