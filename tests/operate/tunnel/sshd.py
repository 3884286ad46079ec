"""A real sshd for tests, with its own keys, configuration and port, and an exporter beside it.

As root it runs in a mount namespace with a passwd file that has the user `sshd`, which sshd requires and which machines
without openssh-server lack; else as the user of the tests.
"""

import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.debian import debian_environment, debian_tool
from tests.support.ports import free_port

READY_S = 30


def generate_key(path: Path) -> Path:
    command = [str(debian_tool("ssh-keygen")), "-q", "-t", "ed25519", "-N", "", "-f", str(path)]
    subprocess.run(command, check=True, env=debian_environment())
    return path


class Sshd:
    """One sshd below `folder`. `prefix` is a command that runs it elsewhere, such as in a network namespace."""

    def __init__(self, folder: Path, *, address: str = "127.0.0.1", port: int = 0, prefix: Sequence[str] = ()) -> None:
        self.folder, self.address, self.port = folder, address, port or free_port()
        self._prefix = list(prefix)
        self._program = debian_tool("sshd")
        folder.mkdir(exist_ok=True)
        self.host_key = generate_key(folder / "host_key")
        self.identity = generate_key(folder / "identity")
        authorized = folder / "authorized_keys"
        authorized.write_text((folder / "identity.pub").read_text())
        authorized.chmod(0o600)
        self.known_hosts = folder / "known_hosts"
        self.trust()
        self.config = folder / "sshd_config"
        self.config.write_text(
            f"Port {self.port}\nListenAddress {address}\nHostKey {self.host_key}\n"
            f"AuthorizedKeysFile {authorized}\nPidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n"
            "KbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\nUseDNS no\nLogLevel VERBOSE\n"
        )
        self.process: subprocess.Popen[bytes] | None = None

    def trust(self) -> None:
        """Write the host key that clients know."""
        key = self.host_key.with_suffix(".pub").read_text().split()[:2]
        self.known_hosts.write_text(f"[{self.address}]:{self.port} {' '.join(key)}\n")

    def change_key(self) -> None:
        """Replace the host key; needs a restart."""
        for name in ("host_key", "host_key.pub"):
            (self.folder / name).unlink()
        generate_key(self.host_key)

    def start(self) -> None:
        log = (self.folder / "sshd.log").open("ab")
        command = [*self._prefix, *self._command()]
        self.process = subprocess.Popen(
            command, env=debian_environment(), stdout=log, stderr=log, start_new_session=True
        )
        log.close()
        deadline = time.monotonic() + READY_S
        while "Server listening" not in self.log().rpartition("started\n")[2]:
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.05)

    def log(self) -> str:
        return (self.folder / "sshd.log").read_text(errors="replace")

    def stop(self) -> None:
        """Kill it with its sessions."""
        if self.process is None:
            return
        for pid in [*descendants(self.process.pid), self.process.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, 9)
        self.process.wait(READY_S)
        with (self.folder / "sshd.log").open("a") as log:
            log.write("started\n")
        self.process = None

    def _command(self) -> list[str]:
        sshd = [str(self._program), "-D", "-e", "-f", str(self.config)]
        if os.geteuid() != 0:
            return sshd
        if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
            pytest.skip("sshd as root needs a mount namespace, which this machine does not permit")
        passwd, empty = self.folder / "passwd", self.folder / "run"
        text = Path("/etc/passwd").read_text()
        if "\nsshd:" not in text:
            text += "sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin\n"
        passwd.write_text(text)
        empty.mkdir(exist_ok=True, mode=0o755)
        script = (
            f"mount --bind {shlex.quote(str(passwd))} /etc/passwd && mount -t tmpfs -o mode=755 tmpfs /run"
            f" && mkdir -m 755 /run/sshd && exec {shlex.join(sshd)}"
        )
        return [str(shutil.which("unshare")), "--mount", "sh", "-c", script]


def descendants(pid: int) -> list[int]:
    """Return the processes below one, children first."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [process for child in map(int, children) for process in (*descendants(child), child)]
