"""Three replicas behind HAProxy and nginx, and clients that count what happens to their requests."""

import re
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple

import numpy as np
import tritonclient.grpc
import tritonclient.http

from conch.operate.deployment.load_balancers import (
    BalancedReplica,
    Ejection,
    HealthCheck,
    LoadBalancer,
    Timeouts,
    haproxy_configuration,
    nginx_configuration,
)
from tests.support.debian import debian_environment, debian_tool
from tests.support.models import ECHO, tensor, write_config, write_identity, write_python, write_scripted
from tests.support.ports import free_port
from tests.support.server_process import ConchProcess

NAMES = ("a", "b", "c")
SHUTDOWN_DELAY_S = 3
_TIMEOUT_S = 30
WORDS = " ".join(f"word{number}" for number in range(60))


def wait_until(condition: Callable[[], object]) -> None:
    """Wait until it holds."""
    deadline = monotonic() + _TIMEOUT_S
    while not condition():
        assert monotonic() < deadline
        sleep(0.02)


def write_models(folder: Path, gate: Path) -> None:
    """A quick model, one that waits for a file, one with sequences, and a language model of 60 words in 6 s."""
    ends = f"input {tensor('INPUT0', 'INT32', 1)} output {tensor('OUTPUT0', 'INT32', 1)}"
    write_identity(folder, "quick", "INT32", 1)
    write_python(folder, "held", ends, f"while not os.path.exists({str(gate)!r}): time.sleep(0.05)\n{ECHO}")
    hour = "sequence_batching { max_sequence_idle_microseconds: 3600000000 }"
    # Room for all sequences of a test on one replica: by their hashes they may meet there.
    write_config(folder, "sequence", f'backend: "identity" max_batch_size: 64 {hour} {ends}')
    write_scripted(folder, "words", {"reply": WORDS, "step_ms": 100})
    write_config(folder, "broken", 'backend: "onnxruntime"')


class Replicas:
    """Three servers whose ports stay the same when they start again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = {name: (free_port(), free_port()) for name in NAMES}
        self._starts = 0
        self.gate = folder / "gate"
        write_models(folder / "models", self.gate)
        self.processes: dict[str, ConchProcess] = {}

    def start(self, *names: str) -> None:
        """Start servers at the same time; they are ready at the end."""
        threads = [threading.Thread(target=self._start, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(self.processes[name].process.poll() is None for name in names)

    def _start(self, name: str) -> None:
        self._starts += 1
        http, grpc = self._ports[name]
        self.processes[name] = ConchProcess(
            self._folder / "models",
            *(f"--id={name}", f"--http-port={http}", f"--grpc-port={grpc}", "--model-control-mode=explicit"),
            *(f"--load-model={model}" for model in ("quick", "held", "sequence", "words")),
            *(f"--shutdown-delay-secs={SHUTDOWN_DELAY_S}", "--listen-when-ready=true"),
            log=self._folder / f"{name}-{self._starts}.log",
        ).__enter__()

    def stop(self, *names: str) -> None:
        """Send SIGTERM to all and wait until they have ended with status 0."""
        for name in names:
            self.processes[name].process.send_signal(signal.SIGTERM)
        for name in names:
            assert self.processes[name].process.wait(_TIMEOUT_S) == 0, self.processes[name].text

    def kill(self, name: str) -> None:
        """Send SIGKILL to a server and to nothing else: its models' processes end with it."""
        self.processes[name].process.kill()
        self.processes[name].process.wait()

    def balancer(self) -> LoadBalancer:
        """The description, without the address of a load balancer."""
        return LoadBalancer(
            replicas=tuple(BalancedReplica(name, "127.0.0.1", *ports) for name, ports in self._ports.items()),
            address="127.0.0.1",
            # nginx counts failures only, so one is enough to see them in a short test.
            ejection=Ejection(errors=1, seconds=1),
            health=HealthCheck(fall=1),
            timeouts=Timeouts(keep_alive_s=60),  # beyond any pause of a client
        )

    def pending(self, name: str) -> int:
        """Return how many requests of the model that waits are queued."""
        match = re.search(
            r'^nv_inference_pending_request_count{model="held".*} (\d+)', self.processes[name].metrics(), re.MULTILINE
        )
        assert match is not None
        return int(match[1])

    def port(self, name: str) -> int:
        """The HTTP port of a replica."""
        return self._ports[name][0]


class Proxy:
    """A running load balancer in front of the replicas. Its log goes to a file."""

    def __init__(self, kind: str, folder: Path, replicas: Replicas) -> None:
        self.kind = kind
        self._folder = folder
        self._balancer = replace(
            replicas.balancer(), http_port=free_port(), grpc_port=free_port(), run_folder=str(folder)
        )
        self._log = folder / f"{kind}.log"
        self._process: subprocess.Popen[bytes]

    def start(self) -> None:
        """Start the program; it listens at the end."""
        if self.kind == "haproxy":
            file = self._folder / "haproxy.cfg"
            file.write_text(haproxy_configuration(self._balancer))
            command = [str(debian_tool("haproxy")), "-db", "-f", str(file)]
        else:
            file = self._folder / "nginx.conf"
            file.write_text("daemon off;\n" + nginx_configuration(self._balancer))
            command = [str(debian_tool("nginx")), "-e", "stderr", "-p", str(self._folder), "-c", str(file)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, env=debian_environment(), stdout=log, stderr=subprocess.STDOUT)
        wait_until(lambda: self._listens() or self._process.poll() is not None)
        assert self._process.poll() is None, self.text

    def stop(self) -> None:
        """End the program."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(_TIMEOUT_S)

    @property
    def http(self) -> str:
        """`host:port`, as tritonclient wants it."""
        return f"127.0.0.1:{self._balancer.http_port}"

    @property
    def grpc(self) -> str:
        """`host:port`, as tritonclient wants it."""
        return f"127.0.0.1:{self._balancer.grpc_port}"

    @property
    def text(self) -> str:
        """The log so far."""
        return self._log.read_text(errors="replace")

    def _listens(self) -> bool:
        try:
            for port in (self._balancer.http_port, self._balancer.grpc_port):
                socket.create_connection(("127.0.0.1", port), timeout=60).close()
        except OSError:
            return False
        return True


class OneClient:
    """tritonclient for HTTP or gRPC: one connection."""

    def __init__(self, proxy: Proxy, protocol: str) -> None:
        self.protocol = protocol
        self._module: Any = tritonclient.http if protocol == "http" else tritonclient.grpc
        options = {"network_timeout": 60.0} if protocol == "http" else {}
        self._client = self._module.InferenceServerClient(getattr(proxy, protocol), **options)

    def replica(self, headers: dict[str, str] | None = None) -> str:
        """Ask for the name of the server."""
        metadata = self._client.get_server_metadata(headers=headers)
        return str(metadata["name"] if self.protocol == "http" else metadata.name)

    def infer(self, model: str, value: int, headers: dict[str, str] | None = None, **options: Any) -> int:
        """Send a number to a model, and return the answer. Raises InferenceServerException, OSError and others."""
        shape = [1, 1] if model == "sequence" else [1]
        given = self._module.InferInput("INPUT0", shape, "INT32")
        given.set_data_from_numpy(np.full(shape, value, np.int32))
        return int(self._client.infer(model, [given], headers=headers, **options).as_numpy("OUTPUT0").item())

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


class Failure(NamedTuple):
    """A request without an answer."""

    proxy: str
    protocol: str
    reason: str


class ProxyLoad:
    """Threads that each send one request after another with official clients, with pauses."""

    def __init__(self, proxies: list[Proxy], model: str) -> None:
        self.failures: list[Failure] = []
        self.answers = 0
        self._model = model
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, args=(proxy, protocol))
            for proxy in proxies
            for protocol in ("http", "grpc")
        ]

    @contextmanager
    def running(self) -> Iterator["ProxyLoad"]:
        """Send requests during a block; all have ended afterwards."""
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._stopping.set()
            for thread in self._threads:
                thread.join()

    def until_more(self, answers: int) -> None:
        """Wait for more answers."""
        wanted = self.answers + answers
        wait_until(lambda: self.answers >= wanted)

    def _work(self, proxy: Proxy, protocol: str) -> None:
        client, number = OneClient(proxy, protocol), 0
        while not self._stopping.is_set():
            number += 1
            try:
                assert client.infer(self._model, number) == number
                self.answers += 1
            except Exception as error:  # the clients raise many kinds
                self.failures.append(Failure(proxy.kind, protocol, str(error)))
            self._stopping.wait(0.05)
        client.close()
