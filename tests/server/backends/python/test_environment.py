"""Models with a separate interpreter (`EXECUTION_ENV_PATH`)."""

import io
import os
import tarfile
import venv
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest

from conch.base.archives import ArchiveLimits, extract_tar
from conch.base.errors import ConfigError, ModelLoadError
from conch.server.backends.base import ModelSource
from conch.server.backends.processes.fork_server import ForkServer
from conch.server.backends.processes.launch import Program
from conch.server.backends.python.environment import Environments
from tests.server.backends.python.running import running, source

WHERE = """
    import os
    import sys
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            told = [sys.prefix, os.environ["VIRTUAL_ENV"], os.environ["PATH"].split(os.pathsep)[0]]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(told, dtype=object))])]
"""


def is_there(path: Path) -> bool:
    return path.exists()


async def program(environments: Environments, model: ModelSource) -> str:
    launcher = await environments.launcher(model)
    assert isinstance(launcher, Program)
    return launcher.command[0]


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """Make an environment that finds the packages of the one that runs the tests."""
    root = tmp_path / "model" / "env"
    venv.create(root, symlinks=True)
    (packages,) = root.glob("lib/python*/site-packages")
    (packages / "ours.pth").write_text(str(Path(np.__file__).parents[1]))
    return root


@pytest.mark.parametrize("path", ["{root}", "$$TRITON_MODEL_DIRECTORY/env", "env"])
async def test_a_directory(tmp_path: Path, environment: Path, path: str) -> None:
    parameters = {"EXECUTION_ENV_PATH": path.replace("{root}", str(environment))}
    async with running(tmp_path / "model", WHERE, parameters=parameters) as runner:
        response = await runner.infer()
    told = [text.decode() for text in response.outputs[0].to_numpy()]
    assert told == [str(environment), str(environment), str(environment / "bin")]


async def test_an_archive_is_unpacked_once_and_removed(tmp_path: Path, environment: Path) -> None:
    archive = tmp_path / "env.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(environment, ".")
    parameters = {"EXECUTION_ENV_PATH": str(archive)}
    model = source(tmp_path / "model", parameters=parameters)
    async with running(tmp_path / "model", WHERE, parameters=parameters) as runner:
        response = await runner.infer()
        prefix = Path(response.outputs[0].to_numpy()[0].decode())
        assert prefix != environment
        assert is_there(prefix)
        environments = runner.backend._environments
        assert await program(environments, model) == str(prefix / "bin/python")
        os.utime(archive, ns=(1, 1))
        changed = await program(environments, model)
        assert changed != str(prefix / "bin/python")
    assert not is_there(prefix)
    assert not is_there(Path(changed))


async def test_a_path_without_an_environment(tmp_path: Path) -> None:
    garbage = tmp_path / "garbage.tar.gz"
    garbage.write_bytes(b"garbage")
    (tmp_path / "empty").mkdir()
    environments = Environments(ForkServer())
    for path, words in [
        (tmp_path / "absent", "cannot be read: No such file or directory"),
        (garbage, "cannot be unpacked"),
        (tmp_path / "empty", "has no bin/python"),
    ]:
        with pytest.raises(ModelLoadError, match=f"EXECUTION_ENV_PATH '{path}' {words}"):
            await environments.launcher(source(tmp_path, parameters={"EXECUTION_ENV_PATH": str(path)}))
    await environments.remove()


@pytest.mark.parametrize("name", ["../escaped", "link/escaped"])
async def test_an_archive_writes_nothing_elsewhere(tmp_path: Path, name: str) -> None:
    archive = tmp_path / "evil.tar.gz"
    outside = tmp_path / "outside"
    outside.mkdir()
    with tarfile.open(archive, "w:gz") as tar:
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, str(outside)
        tar.addfile(link)
        tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    environments = Environments(ForkServer())
    with pytest.raises(ModelLoadError, match="cannot be unpacked"):
        await environments.launcher(source(tmp_path, parameters={"EXECUTION_ENV_PATH": str(archive)}))
    await environments.remove()
    assert list(outside.iterdir()) == []


def _members(kind: str, outside: Path) -> list[tarfile.TarInfo]:
    """Return members of an archive that is refused."""
    link, member = tarfile.TarInfo("link"), tarfile.TarInfo("member")
    link.type, link.linkname = tarfile.SYMTYPE, str(outside)
    if kind == "long header":
        member.pax_headers = {"comment": "x" * 200_000}
        return [member]
    if kind == "hard link through a link":
        member.type, member.linkname = tarfile.LNKTYPE, "link/secret"
        return [link, member]
    if kind == "hard link to a link":
        link.linkname = str(outside / "secret")
        member.type, member.linkname = tarfile.LNKTYPE, "link"
        return [link, member]
    if kind == "file in place of a link":
        link.linkname = str(outside / "secret")
        member.name = "link"
        return [link, member]
    if kind == "pipe":
        member.type = tarfile.FIFOTYPE
        return [member]
    assert kind == "deep path"
    member.name = "/".join("d" * 100)
    return [member]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("long header", "bytes of names and attributes"),
        ("hard link through a link", "'member' is below a link"),
        ("hard link to a link", "'member' is a hard link to a file that does not precede it in the archive"),
        ("file in place of a link", "'link' would replace a link"),
        ("pipe", "'member' is a device or pipe"),
        ("deep path", "too long or deep a path"),
    ],
)
async def test_an_archive_is_bounded_and_writes_through_no_link(tmp_path: Path, kind: str, reason: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("kept")
    archive = tmp_path / "evil.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for member in _members(kind, outside):
            tar.addfile(member, io.BytesIO())
    environments = Environments(ForkServer())
    with pytest.raises(ModelLoadError, match=f"(?s)cannot be unpacked.*{reason}"):
        await environments.launcher(source(tmp_path, parameters={"EXECUTION_ENV_PATH": str(archive)}))
    await environments.remove()
    assert [(path.name, path.read_text()) for path in outside.iterdir()] == [("secret", "kept")]


def test_an_archive_expands_within_bounds(tmp_path: Path) -> None:
    archive = tmp_path / "bomb.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for number in range(3):
            member = tarfile.TarInfo(str(number))
            member.size = 100_000
            tar.addfile(member, io.BytesIO(bytes(member.size)))
    for limits, reason in [
        (ArchiveLimits(total_bytes=250_000), "expands to more than 250000 bytes"),
        (ArchiveLimits(ratio=2, ratio_from_bytes=1000), "expands to more than"),
        (ArchiveLimits(entries=2), "more than 2 files"),
    ]:
        with pytest.raises(ConfigError, match=reason):
            extract_tar(archive, Path(mkdtemp(dir=tmp_path)), limits)
    extract_tar(archive, tmp_path / "target")
    assert sorted(path.name for path in (tmp_path / "target").iterdir()) == ["0", "1", "2"]


@pytest.mark.parametrize("path", ["$$TRITON_MODEL_DIRECTORY/../env", "$$TRITON_MODEL_DIRECTORY/a/../../env"])
async def test_a_path_in_the_model_folder_stays_there(tmp_path: Path, path: str) -> None:
    (tmp_path / "env" / "bin").mkdir(parents=True)
    (tmp_path / "env" / "bin" / "python").touch()
    with pytest.raises(ModelLoadError, match="leads out of the model's directory"):
        await Environments(ForkServer()).launcher(source(tmp_path / "model", parameters={"EXECUTION_ENV_PATH": path}))


async def test_an_interpreter_that_cannot_run(tmp_path: Path) -> None:
    program = tmp_path / "env" / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.write_text("no program")
    with pytest.raises(ModelLoadError, match=f"cannot run '{program}': Permission denied"):
        async with running(tmp_path, WHERE, parameters={"EXECUTION_ENV_PATH": "env"}):
            pass


async def test_an_environment_without_numpy_says_so(tmp_path: Path) -> None:
    venv.create(tmp_path / "env", symlinks=True)
    with pytest.raises(ModelLoadError, match=r"(?s)exited with status 1:.*No module named 'numpy'"):
        async with running(tmp_path, WHERE, parameters={"EXECUTION_ENV_PATH": "env"}):
            pass
