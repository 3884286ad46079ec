"""What KServe and the kubelet make of a runtime: a process with its arguments and environment, and its probes.

The folder of the model is read only, the user is a random one without rights, and only `/tmp` can be written to.
"""

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tools.kserve_runtimes import GRPC_PORT, HTTP_PORT, METRICS_PORT, MODEL_DIR

from tests.support.ports import free_port
from tests.support.server_process import LoggedProcess

START_S = 90
# It can read files that are only root's, as images have none, and write none of them.
_RANDOM_USER = ("setpriv", "--reuid=1000710000", "--regid=0", "--clear-groups", "--no-new-privs")
_READ_ONLY = ("--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search", "--")


class Pod(LoggedProcess):
    """Use as a context manager: inside, the startup and readiness probes have succeeded; at the end SIGTERM follows.

    `storage` is what the storage initializer fetched. `arguments` are those of the InferenceService, which KServe
    appends.
    """

    def __init__(
        self, runtime: Mapping[str, Any], name: str, storage: Path, scratch: Path, *, arguments: Sequence[str] = ()
    ) -> None:
        (self._container,) = runtime["spec"]["containers"]
        self._name = name
        self._storage = storage
        self._arguments = arguments
        self._tmp = scratch / "tmp"
        self.log = scratch / "log"
        self.ports = {port: free_port() for port in (HTTP_PORT, GRPC_PORT, METRICS_PORT)}

    @property
    def http(self) -> str:
        """`host:port`."""
        return f"127.0.0.1:{self.ports[HTTP_PORT]}"

    @property
    def grpc(self) -> str:
        """`host:port`."""
        return f"127.0.0.1:{self.ports[GRPC_PORT]}"

    def start(self) -> None:
        """Start the container's process."""
        self._tmp.mkdir(mode=0o777, parents=True)
        self._tmp.chmod(0o777)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*self._user(), sys.executable, "-m", "conch", *self.command()],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment(),
                cwd=self._tmp,
            )

    def command(self) -> list[str]:
        """Return the arguments, with KServe's placeholders, the mount and the ports replaced."""
        words = [*self._container["args"], *self._arguments]
        for old, new in (("{{.Name}}", self._name), (MODEL_DIR, str(self._storage))):
            words = [word.replace(old, new) for word in words]
        for port, free in self.ports.items():
            words = [word.replace(f"-port={port}", f"-port={free}") for word in words]
        return words

    def _environment(self) -> dict[str, str]:
        given = {variable["name"]: variable["value"] for variable in self._container["env"]}
        image = {"HOME": str(self._tmp), "TMPDIR": str(self._tmp), "CONCH_MODEL_REPOSITORY": "/models"}
        # What KServe and the kubelet add: addresses of services, also of one with the name of the server.
        added = {
            "STORAGE_URI": "s3://models/m",
            "PROTOCOL_VERSION": "v2",
            "MODEL_INIT_MODE": "async",
            "K_SERVICE": f"{self._name}-predictor",
            "K_REVISION": f"{self._name}-predictor-00001",
            "PORT": str(self.ports[HTTP_PORT]),
            "CONCH_PREDICTOR_SERVICE_HOST": "10.0.0.1",
            "CONCH_PREDICTOR_PORT": "tcp://10.0.0.1:80",
        }
        return {"PATH": os.environ["PATH"], **image, **added, **given}

    def _user(self) -> list[str]:
        for path in (self._storage, *self._storage.rglob("*")) if self._storage.exists() else ():
            writable = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
            path.chmod(path.stat().st_mode & ~writable)
        return [*_RANDOM_USER, *_READ_ONLY] if os.geteuid() == 0 and shutil.which("setpriv") else []

    def probe(self, name: str) -> bool:
        """Whether a probe of the runtime succeeds."""
        spec = self._container[f"{name}Probe"]
        if "httpGet" in spec:
            asked = spec["httpGet"]
            try:
                url = f"http://127.0.0.1:{self.ports[asked['port']]}{asked['path']}"
                with urllib.request.urlopen(url, timeout=60) as response:
                    return bool(200 <= response.status < 400)
            except (urllib.error.HTTPError, OSError):
                return False
        if "tcpSocket" in spec:
            with socket.socket() as connection:
                return connection.connect_ex(("127.0.0.1", self.ports[spec["tcpSocket"]["port"]])) == 0
        with grpc.insecure_channel(f"127.0.0.1:{self.ports[spec['grpc']['port']]}") as channel:
            try:
                health = health_pb2_grpc.HealthStub(channel)
                answer = health.Check(health_pb2.HealthCheckRequest(), timeout=60)
            except grpc.RpcError:
                return False
            return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def until(self, probe: str) -> None:
        """Return when a probe succeeds; fail if the process ends."""
        deadline = time.monotonic() + START_S
        while not self.probe(probe):
            assert self.process.poll() is None, f"the server ended: {self.text}"
            assert time.monotonic() < deadline, f"{probe} probe failed for {START_S} s: {self.text}"
            time.sleep(0.05)

    def __enter__(self) -> Self:
        self.start()
        try:
            for probe in ("startup", "liveness", "readiness"):
                self.until(probe)
        except BaseException:
            self.stop(signal.SIGKILL)
            raise
        return self
