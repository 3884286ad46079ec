"""What generates in the benchmark: raw OpenVINO GenAI, Conch with it, vLLM's own server, Conch with vLLM.

All hold the same weights with the same limits, and prefix caching is on everywhere; nothing else is set.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.harness.conch_install import ConchInstall
from benchmarks.harness.machine import CHECKOUT, package_versions
from benchmarks.harness.peers import Conch, PeerError, Ports, Server
from benchmarks.harness.process_tree import ProcessTree
from benchmarks.harness.vllm_install import VllmInstall
from benchmarks.llm.model import CONTEXT
from benchmarks.llm.timings import Timings
from benchmarks.llm.work import Job

RAW, CONCH, VLLM, CONCH_VLLM = "raw", "conch", "vllm", "conch-vllm"
SYSTEMS = (RAW, CONCH, VLLM, CONCH_VLLM)

_ROUND_TIMEOUT_S = 600  # of one round
MODEL_NAME = "random"
_CACHE_GIB = 1
_MAX_SEQUENCES = 64
_SCHEDULER = {
    "cache_size": _CACHE_GIB,
    "max_num_seqs": _MAX_SEQUENCES,
    "enable_prefix_caching": True,
    "dynamic_split_fuse": True,
}
_VLLM = {
    "max_model_len": CONTEXT,
    "max_num_seqs": _MAX_SEQUENCES,
    "enable_prefix_caching": True,
}
_VLLM_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": str(_CACHE_GIB),
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
}


class System(Protocol):
    """One that is up and does jobs."""

    @property
    def tree(self) -> ProcessTree:
        """Its processes, without the clients."""

    def do(self, job: Job) -> Timings:
        """Do a job to its end. Raises PeerError when the system or the clients' process breaks down."""


@dataclass(frozen=True)
class Installs:
    """Where the programs and the model are: `gguf` is the file, `checkpoint` the folder."""

    conch: ConchInstall
    vllm: VllmInstall
    gguf: Path
    checkpoint: Path

    def packages(self, name: str) -> str:
        """Return the packages that matter to a system, with their versions."""
        environment = (self.vllm if name in (VLLM, CONCH_VLLM) else self.conch).environment
        names = ("openvino", "openvino-genai", "vllm-cpu", "torch", "uvicorn", "uvloop")
        return package_versions(names, _site_packages(environment))


def _site_packages(environment: Path) -> list[str]:
    return [str(path) for path in environment.glob("lib/python*/site-packages")]


def started(name: str, installs: Installs, directory: Path) -> AbstractContextManager[System]:
    """Start the system of that name, with its files in `directory`; leaving the context ends it. Raises PeerError."""
    if name == RAW:
        return _raw_loop(installs, directory / "raw.log")
    return _served(name, installs, directory)


@dataclass(frozen=True)
class _Loop:
    process: "subprocess.Popen[str]"
    tree: ProcessTree
    log: Path

    def do(self, job: Job) -> Timings:
        """Have the loop do it."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(asdict(job)) + "\n")
        self.process.stdin.flush()
        return Timings(**json.loads(self.line()))

    def line(self) -> str:
        """Return what it says next."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise PeerError(f"{RAW} ended; its log ends:\n{self.log.read_text(errors='replace')[-2000:]}")
        return line


@contextmanager
def _raw_loop(installs: Installs, log: Path) -> Iterator[System]:
    python = str(installs.conch.python)
    command = [python, "-m", "benchmarks.llm.raw", str(installs.gguf), json.dumps(_SCHEDULER)]
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            command,
            cwd=CHECKOUT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        ) as process,
    ):
        try:
            loop = _Loop(process, ProcessTree(process.pid), log)
            loop.line()
            yield loop
        finally:
            process.kill()


@dataclass(frozen=True)
class _Http:
    server: Server
    tree: ProcessTree

    def do(self, job: Job) -> Timings:
        """Run the job with clients in a separate process."""
        self.server.check_alive()
        arguments = [self.server.http_address, MODEL_NAME, json.dumps(asdict(job))]
        clients = [sys.executable, "-m", "benchmarks.llm.client", *arguments]
        try:
            done = subprocess.run(
                clients, cwd=CHECKOUT, capture_output=True, text=True, check=True, timeout=_ROUND_TIMEOUT_S
            )
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            raise PeerError(f"the clients of {self.server.peer.name} failed: {error}\n{error.stderr!r}") from error
        return Timings(**json.loads(done.stdout))


@contextmanager
def _served(name: str, installs: Installs, directory: Path) -> Iterator[System]:
    peer: _ConchWithEngines | _VllmServer
    if name == VLLM:
        peer = _VllmServer(installs.vllm, installs.checkpoint)
    else:
        peer = _ConchWithEngines(name, installs.conch, installs.vllm)
    repository = directory / f"{name}-repository"
    if name == CONCH:
        _write_model(repository, "openvino_genai", {**_SCHEDULER, "model": str(installs.gguf)})
    elif name == CONCH_VLLM:
        _write_model(repository, "vllm", {**_VLLM, "model": str(installs.checkpoint)})
    with Server(peer, repository, directory / f"{repository.name}.log") as server:
        yield _Http(server, server.tree)


def _write_model(repository: Path, backend: str, options: dict[str, object]) -> None:
    version = repository / MODEL_NAME / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(f'backend: "{backend}"\n')
    (version / "model.json").write_text(json.dumps(options))


class _ConchWithEngines(Conch):
    """Conch with vLLM in a separate environment."""

    def __init__(self, name: str, install: ConchInstall, vllm: VllmInstall) -> None:
        super().__init__(install)
        self.name = name
        self._vllm = vllm

    def command(self, repository: Path) -> list[str]:
        """Return the usual command line, and where vLLM is."""
        return [*super().command(repository), f"--backend-config=vllm,env-path={self._vllm.environment}"]

    def environment(self) -> dict[str, str]:
        """Return this process's environment with what vLLM reads of it."""
        return {**super().environment(), **_VLLM_ENVIRONMENT}


class _VllmServer:
    """vLLM's own server of the OpenAI API."""

    name = VLLM
    only_python = False
    ready_path = "/health"

    def __init__(self, install: VllmInstall, checkpoint: Path) -> None:
        self._install = install
        self._checkpoint = checkpoint

    def command(self, repository: Path) -> list[str]:  # noqa: ARG002 - it serves one model
        """Return the command line that serves the checkpoint; no line in a log for each request."""
        module = ["-m", "vllm.entrypoints.openai.api_server", f"--model={self._checkpoint}"]
        limits = [f"--max-model-len={CONTEXT}", f"--max-num-seqs={_MAX_SEQUENCES}", "--enable-prefix-caching"]
        quiet = ["--disable-uvicorn-access-log"]
        return [str(self._install.python), *module, f"--served-model-name={MODEL_NAME}", *limits, *quiet]

    def flags(self, ports: Ports) -> list[str]:
        """Return the one port that it has."""
        return ["--host=127.0.0.1", f"--port={ports.http}"]

    def environment(self) -> dict[str, str]:
        """Return this process's environment with its own in front."""
        path = f"{self._install.environment / 'bin'}:{os.environ['PATH']}"
        return {**os.environ, **_VLLM_ENVIRONMENT, "PATH": path}

    def packages(self) -> str:
        """Return those of its environment."""
        return package_versions(("vllm-cpu", "torch", "uvicorn"), _site_packages(self._install.environment))


def all_started(
    names: Sequence[str], installs: Installs, directory: Path, running: ExitStack
) -> Iterator[tuple[str, System]]:
    """Start one system after the other and yield each with its name when it is up."""
    for name in names:
        yield name, running.enter_context(started(name, installs, directory))
