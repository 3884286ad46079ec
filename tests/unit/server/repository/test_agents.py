"""Repository agents: checksums, agents of packages, and what a configuration cannot reach."""

import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conch.base.errors import ConfigError
from conch.server.repository.agents import run_agents
from conch.server.repository.store import Repository

MD5 = hashlib.md5(b"weights").hexdigest()
PACKAGE = """
import pathlib, shutil

def decrypt(model, folder, parameters):
    made = pathlib.Path(parameters["to"])
    shutil.copytree(folder, made)
    (made / "1" / "model.py").write_text(parameters["text"])
    return made

def refuse(model, folder, parameters):
    raise ValueError(f"{model} is not welcome in {folder.name}")

def accept(model, folder, parameters):
    assert (folder / "1" / "model.py").read_text() == parameters["text"]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "models" / "m" / "1").mkdir(parents=True)
    (tmp_path / "models" / "m" / "1" / "model.py").write_bytes(b"weights")
    (tmp_path / "models" / "secret").write_text("s")
    return tmp_path / "models" / "m"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package with three agents."""
    site = tmp_path / "site"
    (site / "agents_of_a_test-1.dist-info").mkdir(parents=True)
    names = "".join(f"{name} = agents_of_a_test:{name}\n" for name in ("decrypt", "refuse", "accept", "missing"))
    (site / "agents_of_a_test-1.dist-info" / "entry_points.txt").write_text(f"[conch.repository_agents]\n{names}")
    (site / "agents_of_a_test-1.dist-info" / "METADATA").write_text("Name: agents-of-a-test\nVersion: 1\n")
    (site / "agents_of_a_test.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(site)
    yield
    sys.modules.pop("agents_of_a_test", None)


@pytest.mark.parametrize("key", ["MD5:1/model.py", "md5:1/model.py", "MD5:1/../1/model.py"])
def test_a_checksum_that_matches(folder: Path, key: str) -> None:
    assert run_agents([("checksum", {key: MD5})], "m", folder) is None
    digest = hashlib.sha256(b"weights").hexdigest()
    assert run_agents([("checksum", {"SHA256:1/model.py": digest.upper()})], "m", folder) is None


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("MD5:1/model.py", f"Mismatched MD5 hash for file 1/model.py, expect: 00, got: {MD5}"),  # in Triton's words
        ("1/model.py", "failed to parse key: 1/model.py"),
        ("SHA1:1/model.py", "Unsupported checksum algorithm: SHA1"),
        ("MD5:none", "failed to open text file for read none: No such file or directory"),
        ("MD5:1", "failed to open text file for read 1: Is a directory"),
        ("MD5:pipe", "failed to open text file for read pipe: not a regular file"),
        ("MD5:../secret", "leads out of the model's directory"),
        ("MD5:/etc/passwd", "leads out of the model's directory"),
        ("MD5:link", "leads out of the model's directory"),
        ("MD5:a\0b", "leads out of the model's directory"),
    ],
)
def test_a_checksum_that_refuses(folder: Path, key: str, problem: str) -> None:
    (folder / "link").symlink_to(folder.parent / "secret")
    os.mkfifo(folder / "pipe")
    with pytest.raises(ConfigError) as raised:
        run_agents([("checksum", {key: "00"})], "m", folder)
    assert raised.value.message.startswith("model_repository_agents: agent 'checksum' refuses model 'm': ")
    assert problem in raised.value.message


def test_an_unknown_agent(folder: Path) -> None:
    with pytest.raises(ConfigError, match="no installed package provides the agent 'checksums'; did you mean 'checksu"):
        run_agents([("checksums", {})], "m", folder)


@pytest.mark.usefixtures("package")
def test_agents_of_packages_run_in_order(folder: Path, tmp_path: Path) -> None:
    texts = {"to": str(tmp_path / "made"), "text": "plain"}
    agents = [("checksum", {"MD5:1/model.py": MD5}), ("decrypt", texts), ("accept", texts)]
    assert run_agents(agents, "m", folder) == tmp_path / "made"
    again = {**texts, "to": str(tmp_path / "other")}
    with pytest.raises(ConfigError, match="agent 'refuse' refuses model 'm': ValueError: m is not welcome in other"):
        run_agents([("decrypt", again), ("refuse", {})], "m", folder)
    assert not (tmp_path / "other").exists()
    with pytest.raises(ConfigError, match="agent 'missing' cannot be imported"):
        run_agents([("missing", {})], "m", folder)
    assert run_agents([("refuse", {})], "m", folder, static=True) is None


@pytest.mark.usefixtures("package")
def test_a_folder_that_an_agent_made_is_served_and_removed(folder: Path, tmp_path: Path) -> None:
    parameters = f'parameters {{ key: "to" value: "{tmp_path / "made"}" }} parameters {{ key: "text" value: "plain" }}'
    config = f'backend: "python" model_repository_agents {{ agents {{ name: "decrypt" {parameters} }} }}'
    (folder / "config.pbtxt").write_text(config)
    files = Repository([folder.parent], agents=run_agents).read("m")
    assert (files.directory, files.versions_on_disk) == (tmp_path / "made", (1,))
    files.discard()
    assert not files.directory.exists()
    assert (folder / "1" / "model.py").read_bytes() == b"weights"
    assert Repository([folder.parent]).read("m").directory == folder  # of commands that list models
