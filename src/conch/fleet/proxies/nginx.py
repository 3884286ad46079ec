"""nginx, changed by a reload: the old workers finish their requests and close their connections."""

import signal
from collections.abc import Sequence
from pathlib import Path

from conch.deployment.load_balancers.description import Backend, LoadBalancer
from conch.deployment.load_balancers.nginx import nginx_configuration
from conch.fleet.child import Child
from conch.fleet.proxies.proxy import until_listening
from conch.fleet.replica import Replica

_STOP_TIMEOUT_S = 5.0
# An upstream needs a server.
_NONE = Backend("none", "127.0.0.1", 1, 1)
_TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


class NginxProxy:
    """nginx with the replicas in its configuration."""

    def __init__(self, program: str, folder: Path, ports: tuple[int, int]) -> None:
        """Assign. `ports` are those for HTTP and gRPC."""
        self._ports = ports
        self._folder = folder
        self._configuration = folder / "nginx.conf"
        command = [program, "-p", str(folder), "-e", "stderr", "-c", str(self._configuration)]
        self.child = Child([*command, "-g", f"daemon off; pid {folder / 'nginx.pid'};"], folder / "nginx.log")

    async def start(self) -> None:
        """Start without replicas. Raises Unavailable."""
        self._write((_NONE,))
        await self.child.start()
        await until_listening(self.child, self._ports, self.child.log)

    async def update(self, ready: Sequence[Replica]) -> None:
        """Write the configuration and reload."""
        backends = tuple(Backend(each.name, "127.0.0.1", each.ports["http"], each.ports["grpc"]) for each in ready)
        self._write(backends or (_NONE,))
        self.child.signal(signal.SIGHUP)

    async def stop(self) -> None:
        """End."""
        await self.child.stop(_STOP_TIMEOUT_S)

    def _write(self, backends: tuple[Backend, ...]) -> None:
        balancer = LoadBalancer(
            backends=backends,
            address="127.0.0.1",
            http_port=self._ports[0],
            grpc_port=self._ports[1],
            access_log=False,
        )
        # Debian's folders for temporary files are root's.
        folders = "".join(f"\n    {each}_temp_path {self._folder}/nginx-{each};" for each in _TEMPORARY)
        text = nginx_configuration(balancer).replace("http {", f"http {{{folders}", 1)
        self._configuration.write_text(text)
