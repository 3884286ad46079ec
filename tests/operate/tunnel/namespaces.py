"""Two network namespaces with a cable between them, which can be cut."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from shutil import which

import pytest

from tests.support.debian import debian_environment, debian_tool

NEAR, FAR = "10.213.0.1", "10.213.0.2"
_PREFIX_BITS = 24


@dataclass
class Cable:
    """Commands run in a namespace by their prefix: `near` has the address NEAR, `far` has FAR."""

    near: list[str]
    far: list[str]
    _ip: str

    def cut(self) -> None:
        """Lose all packets: neither side is notified."""
        self._set("down")

    def repair(self) -> None:
        self._set("up")

    def _set(self, state: str) -> None:
        # Of the far end: the near end has no carrier then, but keeps its address and route.
        subprocess.run([*self.far, self._ip, "link", "set", "far", state], check=True, env=debian_environment())


@contextmanager
def cable() -> Iterator[Cable]:
    """Connect two new namespaces. Skips the test where they are not permitted. They end with their processes."""
    if os.geteuid() != 0 or not which("unshare") or not which("nsenter"):
        pytest.skip("network namespaces with a cable need root, unshare and nsenter")
    ip, environment = str(debian_tool("ip")), debian_environment()
    holders: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(2):
            holders.append(
                subprocess.Popen(["unshare", "--net", "sh", "-c", "echo; exec sleep 3600"], stdout=subprocess.PIPE)
            )
            stdout = holders[-1].stdout
            assert stdout is not None
            if not stdout.readline():
                pytest.skip("this machine permits no new network namespaces")
        near, far = (["nsenter", "-t", str(holder.pid), "-n"] for holder in holders)
        ends = [
            "near",
            "netns",
            str(holders[0].pid),
            "type",
            "veth",
            "peer",
            "name",
            "far",
            "netns",
            str(holders[1].pid),
        ]
        made = subprocess.run([ip, "link", "add", *ends], env=environment, capture_output=True, text=True)
        if made.returncode:
            pytest.skip(f"this machine has no virtual cables (veth): {made.stderr.strip()}")
        for prefix, name, address in ((near, "near", NEAR), (far, "far", FAR)):
            for command in (
                ["address", "add", f"{address}/{_PREFIX_BITS}", "dev", name],
                ["link", "set", name, "up"],
                ["link", "set", "lo", "up"],
            ):
                subprocess.run([*prefix, ip, *command], check=True, env=environment)
        yield Cable(near, far, ip)
    finally:
        for holder in holders:
            holder.kill()
            holder.wait()
            assert holder.stdout is not None
            holder.stdout.close()
