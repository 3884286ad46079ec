"""The quick starts of LitServe and BentoML beside the same models in Conch: lines, requests per second, processor time.

Run as `python -m benchmarks.quick_starts`. It installs both, and Ray Serve, into `.bench/` from the package index. The
files are in `benchmarks/quick_start_files`: those of LitServe and BentoML are from their README files, but for the
formatting; that of Ray Serve is LitServe's as a deployment. In place of the language model of BentoML's, both servers
call the same function without a model. All servers run as their quick starts say, one worker each; while one is
measured, the others have no requests.
"""

import io
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import tokenize
import urllib.request
import venv
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks.harness.load import WRK_SCRIPTS, run_program, wrk_load
from benchmarks.harness.machine import CHECKOUT, machine, package_versions
from benchmarks.harness.process_tree import ProcessTree

FILES = Path(__file__).with_name("quick_start_files")
CONNECTIONS = (1, 16)
_START_TIMEOUT_S = 120
_TEXT = "Conch serves models. It reads repositories of Triton. Clients keep working."


@dataclass
class Contender:
    """One file, how it is served, and a request with its right answer.

    `rates` are the requests per second of each round, `costs` the processor time of the server's processes, in
    milliseconds per request, by connections.
    """

    file: str
    command: list[str]
    port: int
    path: str
    body: dict[str, Any]
    answer: Any
    rates: dict[int, list[float]] = field(default_factory=dict)
    costs: dict[int, list[float]] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def lines(self) -> int:
        """Lines with code: no blank lines and no comments."""
        return code_lines((FILES / self.file).read_text())

    @property
    def url(self) -> str:
        """Where the request goes."""
        return f"http://127.0.0.1:{self.port}{self.path}"

    @contextmanager
    def served(self, log: Path) -> Iterator[None]:
        """Run the server within the block."""
        environment = dict(os.environ)
        if "transformers" in (FILES / self.file).read_text():
            environment["PYTHONPATH"] = str(FILES / "stand_ins")
        # The port is free only by chance where the file names one.
        copy = log.with_name(self.file)
        copy.write_text((FILES / self.file).read_text().replace("port=8000", f"port={self.port}"))
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                self.command, cwd=log.parent, env=environment, stdout=output, stderr=output, start_new_session=True
            )
        try:
            self._wait(log)
            yield
        finally:
            self.signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(30)
            self.signal(signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the server and its workers, which may have left its process group."""
        assert self.process is not None
        for stat in ProcessTree(self.process.pid).processes():
            with suppress(ProcessLookupError):
                os.kill(stat.pid, number)

    def check(self) -> None:
        """Raise AssertionError for a wrong answer."""
        request = urllib.request.Request(self.url, json.dumps(self.body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=10) as response:
            document = json.load(response)
        answer = document["output"] if isinstance(document, dict) else document
        assert answer == self.answer, f"{self.file}: {answer!r}"

    def measure(self, connections: int, seconds: int, body: Path) -> None:
        """Run one round."""
        assert self.process is not None
        body.write_text(json.dumps(self.body))
        tree = ProcessTree(self.process.pid)
        self.check()
        before = tree.cpu_seconds()
        options = ["--threads=1", f"--connections={connections}", f"--duration={seconds}s", "--timeout=30s"]
        script = [f"--script={WRK_SCRIPTS / 'post.lua'}", self.url, "--", str(body)]
        output = run_program(["wrk", *options, *script, "Content-Type", "application/json"], seconds)
        used = tree.cpu_seconds() - before
        load = wrk_load(output)
        self.rates.setdefault(connections, []).append(load.rate)
        self.costs.setdefault(connections, []).append(used / load.requests * 1000)

    def _wait(self, log: Path) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while True:
            try:
                self.check()
            except OSError as error:
                assert self.process is not None
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{self.file} does not answer:\n{log.read_text()}") from error
                time.sleep(0.2)
            else:
                return


def quick_starts(
    rounds: Annotated[int, typer.Option(help="rounds; the servers take turns in each")] = 7,
    seconds: Annotated[int, typer.Option(help="how long each is measured in a round")] = 3,
    python: Annotated[str, typer.Option(help="interpreter of the Conch to measure, such as a compiled one")] = "",
) -> None:
    """Compare the quick starts of LitServe and BentoML with Conch."""
    console = Console(width=140, highlight=False)
    pairs = _pairs(python or sys.executable)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as servers:
        logs = Path(folder)
        contenders = list({contender.file: contender for pair in pairs for contender in pair}.values())
        for contender in contenders:
            servers.enter_context(contender.served(logs / f"{contender.file}.log"))
        for _ in range(rounds):
            for connections in CONNECTIONS:
                for contender in contenders:
                    contender.measure(connections, seconds, logs / "body")
    facts = machine()
    console.print(f"{facts['date']}, {facts['processor']}, {facts['cores']} cores, load {facts['load average before']}")
    build = subprocess.run([python or sys.executable, "-m", "conch", "--version"], capture_output=True, text=True)
    console.print(f"{build.stdout.strip()}; {', '.join(_version(name) for name in ('litserve', 'ray', 'bentoml'))}\n")
    for line in table(pairs):
        console.print(line)


def table(pairs: list[tuple[Contender, Contender]]) -> Iterator[str]:
    """Yield the Markdown table. Ratios are medians over the rounds, with the smallest and the largest."""
    yield "| Quick start | Lines | Connections | Requests/s | CPU, ms | Conch: lines | Requests/s | Ratio | CPU, ms |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for other, conch in pairs:
        for connections in CONNECTIONS:
            theirs, ours = other.rates[connections], conch.rates[connections]
            ratios = sorted(mine / their for mine, their in zip(ours, theirs, strict=True))
            cells = [
                f"`{other.file}`",
                f"{other.lines}",
                f"{connections}",
                f"{statistics.median(theirs):,.0f}",
                f"{statistics.median(other.costs[connections]):.2f}",
                f"{conch.lines}",
                f"{statistics.median(ours):,.0f}",
                f"{statistics.median(ratios):.1f} ({ratios[0]:.1f} to {ratios[-1]:.1f})",
                f"{statistics.median(conch.costs[connections]):.2f}",
            ]
            yield f"| {' | '.join(cells)} |"


def code_lines(source: str) -> int:
    """Return the number of lines with code: without blank lines and comments."""
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return len(
        {line for token in tokens if token.type not in skipped for line in range(token.start[0], token.end[0] + 1)}
    )


def _pairs(python: str) -> list[tuple[Contender, Contender]]:
    litserve, bentoml, ray = _installed("litserve"), _installed("bentoml"), _installed("ray", "ray[serve]")
    ports = [_free_port() for _ in range(5)]
    engine: dict[str, Any] = {"body": {"input": 4.0}, "answer": 80.0}
    texts = {"body": {"texts": [_TEXT]}}
    conch = [python, "-m", "conch", "serve", "--http-address=127.0.0.1", "--grpc-port=0", "--metrics-port=0"]
    engine_here = Contender(
        "inference_engine_conch.py",
        [*conch, f"--http-port={ports[1]}", "--model-repository=inference_engine_conch.py"],
        ports[1],
        "/v2/models/InferenceEngine/generate",
        **engine,
    )
    engines = [
        Contender(file, [str(folder / "python"), file], port, "/predict", **engine)
        for file, folder, port in (
            ("inference_engine_litserve.py", litserve, ports[0]),
            ("inference_engine_ray_serve.py", ray, ports[4]),
        )
    ]
    return [
        *((there, engine_here) for there in engines),
        (
            Contender(
                "summarization_bentoml.py",
                [str(bentoml / "bentoml"), "serve", f"--port={ports[2]}", "summarization_bentoml:Summarization"],
                ports[2],
                "/summarize",
                answer=["Conch serves models"],
                **texts,
            ),
            Contender(
                "summarization_conch.py",
                [*conch, f"--http-port={ports[3]}", "--model-repository=summarization_conch.py"],
                ports[3],
                "/v2/models/Summarization/generate",
                answer="Conch serves models",
                **texts,
            ),
        ),
    ]


def _installed(package: str, requirement: str = "") -> Path:
    """Return the folder of programs of an environment with a package, which is installed on first use."""
    home = CHECKOUT / ".bench" / f"{package}-venv"
    if not (home / "bin" / package).exists():
        venv.create(home, with_pip=True)
        subprocess.run(
            [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", requirement or package], check=True
        )
    return home / "bin"


def _version(package: str) -> str:
    [site_packages] = (CHECKOUT / ".bench" / f"{package}-venv" / "lib").glob("python*/site-packages")
    return package_versions([package], [str(site_packages)])


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


if __name__ == "__main__":
    typer.run(quick_starts)
