"""podman with images and containers of this checkout's tests only, and bases made of Debian's packages."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
# Images stay here between runs, so that a build begins with what has changed.
STORAGE = ROOT / ".venv" / "image"
BUILD_TIMEOUT_S = 1800
# python:3.13 and python:3.13-slim, played by packages of Debian 12. Its slim images have libstdc++6, which apt needs.
BASES = {
    "base": ("python3", "ca-certificates", "libstdc++6"),
    "builder": ("python3-venv", "python3-dev", "gcc", "binutils", "ca-certificates"),
}
_PATH = re.compile(r"(?:file://)?(/[\w./-]+)")
# runc, as crun refuses hybrid cgroups; limits of files, as the defaults exceed those of unprivileged machines.
_CONF = '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]\n[engine]\nruntime = "runc"\n'


class Podman:
    """One podman with its own storage."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._conf = scratch / "containers.conf"
        self._conf.write_text(_CONF)

    def run(self, *arguments: str, check: bool = True, timeout_s: float = 120) -> "subprocess.CompletedProcess[str]":
        """Run a command of podman; its output is text."""
        folders = [f"--{option}={STORAGE / option}" for option in ("root", "runroot", "tmpdir")]
        command = ["podman", *folders, *arguments]
        environment = {**os.environ, "CONTAINERS_CONF": str(self._conf)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False)
        assert not check or done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done

    def base(self, name: str) -> str:
        """Return the name of an image of Debian's packages, made if there is none yet."""
        image = f"localhost/conch-test-{name}:bookworm"
        if self.run("image", "exists", image, check=False).returncode:
            archive = self._scratch / f"{name}.tar"
            packages = f"--include={','.join(BASES[name])}"
            command = ["mmdebstrap", "--quiet", "--variant=essential", packages, "bookworm", str(archive)]
            sources = [str(path) for path in (Path("/etc/apt/sources.list.d/debian.sources"),) if path.is_file()]
            subprocess.run([*command, *sources], check=True, timeout=BUILD_TIMEOUT_S)
            self.run("import", str(archive), image)
            archive.unlink()
        return image

    def build(self, tag: str, **arguments: str) -> str:
        """Build deploy/Dockerfile on the test's bases, with build arguments; return the image's name."""
        image = f"localhost/conch-test:{tag}"
        conf, mounts = pip_settings()
        (self._scratch / "pip.conf").write_text(conf)
        arguments = {"BUILDER": self.base("builder"), "BASE": self.base("base"), "COMPILE": "no", **arguments}
        self.run(
            "build",
            "--format=docker",  # OCI's has no health check
            "--network=host",
            f"--secret=id=pip.conf,src={self._scratch / 'pip.conf'}",
            *(f"--volume={path}:{path}:ro" for path in mounts),
            *(f"--build-arg={name}={value}" for name, value in arguments.items()),
            f"--tag={image}",
            "--file=deploy/Dockerfile",
            str(ROOT),
            timeout_s=BUILD_TIMEOUT_S,
        )
        return image

    @contextmanager
    def container(self, image: str, *options: str, command: tuple[str, ...] = ()) -> Iterator[str]:
        """Run a container in the background; yield its id and remove it at the end."""
        container = self.run("run", "--detach", *options, image, *command).stdout.strip()
        try:
            yield container
        finally:
            self.run("rm", "--force", "--volumes", "--time=0", container)

    def logs(self, container: str) -> str:
        """Return stdout and stderr of a container."""
        done = self.run("logs", container, check=False)
        return done.stdout + done.stderr

    def inspect(self, kind: str, name: str) -> Any:
        """Return the description of an image or a container."""
        (document,) = json.loads(self.run(kind, "inspect", name).stdout)
        return document


def podman_or_skip(scratch: Path) -> Podman:
    """Return podman; skip the test, with the reason, where images cannot be built."""
    missing = [name for name in ("podman", "runc", "mmdebstrap") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed")
    if os.geteuid() != 0:
        pytest.skip("the test's storage of podman needs root")
    return Podman(scratch)


def pip_settings() -> tuple[str, list[str]]:
    """Return this machine's settings of pip as a file, and the paths of this machine that they name."""
    lines = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    settings: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition("=")
        settings[name.removeprefix(":env:.").removeprefix("global.")] = value.strip("'")
    settings = {name: value for name, value in settings.items() if "." not in name and name != "config-file"}
    matches = {path for value in settings.values() for path in _PATH.findall(value) if Path(path).exists()}
    # The pages of an index name files beside its folder `simple`.
    paths = {path.removesuffix("/simple") for path in matches}
    text = "".join(f"{name} = {value}\n" for name, value in settings.items())
    return f"[global]\n{text}", sorted(paths)
