"""Programs of Debian packages for tests: those that are installed, else unpacked below `.venv/debian` by apt-get.

Needs no root: apt-get gets folders of this checkout for its lists and its cache, and the packages are not installed.
"""

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest

_FOLDER = Path(__file__).parents[2] / ".venv" / "debian"
# Program → the packages that it needs, beyond those of every Debian.
_PACKAGES = {
    "prometheus": ("prometheus",),
    "promtool": ("prometheus",),
    "prometheus-alertmanager": ("prometheus-alertmanager",),
    "amtool": ("prometheus-alertmanager",),
    "sshd": ("openssh-server", "libwrap0"),
    "ssh": ("openssh-client",),
    "ssh-keygen": ("openssh-client",),
    "victoria-metrics": ("victoria-metrics",),
    "docker-registry": ("docker-registry",),
    "shellcheck": ("shellcheck", "libgmp10", "libnuma1"),
    "haproxy": ("haproxy", "liblua5.3-0", "libopentracing-c-wrapper0", "libopentracing1"),
    "nginx": ("nginx",),
    "redis-server": (
        *("redis-server", "redis-tools", "libatomic1", "libjemalloc2", "liblua5.1-0", "liblzf1", "lua-bitop"),
        "lua-cjson",
    ),
    "ip": ("iproute2", "libbpf1", "libelf1"),
    "chromium": (
        *(
            "chromium",
            "chromium-common",
            "libasyncns0",
            "libcolord2",
            "libdouble-conversion3",
            "libepoxy0",
            "libflac12",
        ),
        *("libgtk-3-0", "libharfbuzz-subset0", "libminizip1", "libmp3lame0", "libmpg123-0", "libogg0", "libopenh264-7"),
        *("libopenjp2-7", "libopus0", "libpulse0", "libsndfile1", "libvorbis0a", "libvorbisenc2", "libwayland-cursor0"),
        *("libwayland-egl1", "libxnvctrl0"),
    ),
}
_BIN = ("usr/bin", "usr/sbin", "bin", "sbin")
_SEARCH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


def debian_tool(name: str) -> Path:
    """Return the path of a program. Skips the test, with the reason, where it is missing and cannot be downloaded."""
    if installed := shutil.which(name, path=_SEARCH):
        return Path(installed)
    packages = _PACKAGES[name]
    _FOLDER.mkdir(parents=True, exist_ok=True)
    with (_FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in several processes
        program = _unpacked(name)
        if program is None:
            try:
                _unpack(packages)
            except (OSError, subprocess.SubprocessError) as error:
                pytest.skip(f"{name} is not installed, and apt-get cannot download {' '.join(packages)}: {error}")
            program = _unpacked(name)
    if program is None:
        pytest.skip(f"{name} is not in {' '.join(packages)}")
    return program


def debian_command(name: str) -> list[str]:
    """Return the command of a program that reads files below /usr/share, as prometheus-alertmanager does.

    An unpacked one runs in a mount namespace with the unpacked /usr/share. Skips the test where that is not permitted.
    """
    path = debian_tool(name)
    if not path.is_relative_to(_FOLDER):
        return [str(path)]
    as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
    script = f'mount --bind "{_FOLDER}/root/usr/share" /usr/share && exec "$@"'
    command = ["unshare", "--mount", *as_root, "sh", "-c", script, "sh"]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip(f"{name} is not installed, and a mount namespace for it is not permitted")
    return [*command, str(path)]


def debian_environment() -> dict[str, str]:
    """Return this process's environment, with the libraries of unpacked packages."""
    libraries = [str(path.parent) for path in sorted(_FOLDER.glob("root/**/*.so.*"))]
    path = os.pathsep.join(dict.fromkeys([*libraries, *filter(None, [os.environ.get("LD_LIBRARY_PATH", "")])]))
    return {**os.environ, **({"LD_LIBRARY_PATH": path} if path else {})}


def _unpacked(name: str) -> Path | None:
    return next((path for folder in _BIN if (path := _FOLDER / "root" / folder / name).is_file()), None)


def _unpack(packages: tuple[str, ...]) -> None:
    lists, cache = _FOLDER / "lists", _FOLDER / "cache"
    options = ["-o", f"Dir::State::lists={lists}", "-o", f"Dir::Cache={cache}", "-o", "APT::Sandbox::User="]
    for folder in (lists / "partial", cache / "archives" / "partial"):
        folder.mkdir(parents=True, exist_ok=True)
    if not any(lists.glob("*Packages*")):
        _run(["apt-get", *options, "-qq", "update"])
    _run(["apt-get", *options, "-qq", "download", *packages])
    for package in packages:
        for archive in _FOLDER.glob(f"{package}_*.deb"):
            _run(["dpkg", "-x", str(archive), str(_FOLDER / "root")])
            archive.unlink()


def _run(command: list[str]) -> None:
    subprocess.run(command, cwd=_FOLDER, check=True, timeout=300, stdout=subprocess.DEVNULL)
