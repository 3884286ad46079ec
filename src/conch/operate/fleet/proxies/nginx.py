"""nginx, changed by a reload: the old workers finish their requests and close their connections."""

import signal
from collections.abc import Sequence
from pathlib import Path

from conch.operate.deployment.load_balancers.description import BalancedReplica, LoadBalancer
from conch.operate.deployment.load_balancers.nginx import nginx_configuration
from conch.operate.fleet.child import Child
from conch.operate.fleet.proxies.proxy import until_listening
from conch.operate.fleet.replica import Replica

_STOP_TIMEOUT_S = 5.0
# An upstream needs a server.
_NONE = BalancedReplica("none", "127.0.0.1", 1, 1)


class NginxProxy:
    """nginx with the replicas in its configuration."""

    def __init__(self, program: str, folder: Path, ports: tuple[int, int]) -> None:
        """Assign. `ports` are those for HTTP and gRPC."""
        self._ports = ports
        self._run_folder = folder / "nginx"
        self._configuration = folder / "nginx.conf"
        command = [program, "-p", str(folder), "-e", "stderr", "-c", str(self._configuration), "-g", "daemon off;"]
        self.child = Child(command, folder / "nginx.log")

    async def start(self) -> None:
        """Start without replicas. Raises Unavailable."""
        self._run_folder.mkdir()
        self._write((_NONE,))
        await self.child.start()
        await until_listening(self.child, self._ports, self.child.log)

    async def update(self, ready: Sequence[Replica]) -> None:
        """Write the configuration and reload."""
        backends = tuple(
            BalancedReplica(each.name, "127.0.0.1", each.ports["http"], each.ports["grpc"]) for each in ready
        )
        self._write(backends or (_NONE,))
        self.child.signal(signal.SIGHUP)

    async def stop(self) -> None:
        """End."""
        await self.child.stop(_STOP_TIMEOUT_S)

    def _write(self, backends: tuple[BalancedReplica, ...]) -> None:
        balancer = LoadBalancer(
            replicas=backends,
            address="127.0.0.1",
            http_port=self._ports[0],
            grpc_port=self._ports[1],
            run_folder=str(self._run_folder),
            access_log=False,
        )
        self._configuration.write_text(nginx_configuration(balancer))
