"""`conch bench` beside other load tools on the same server in the same minutes: what each says, and what it costs.

Run as `make bench-tools`, or `python -m benchmarks.load_tools --help`. The tools take turns on one Conch server, and
each is asked for the same load. Its figures are its own; the CPU time is that of its processes.
"""

import csv
import http.server
import json
import re
import resource
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import distributions
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.harness.answers import grpc_answer_bytes
from benchmarks.harness.conch_install import ConchInstall
from benchmarks.harness.load import Load, LoadError, h2load, wrk
from benchmarks.harness.load_tools_install import AIPERF, GUIDELLM, PERF_ANALYZER, TOKENIZER, LoadToolsInstall
from benchmarks.harness.machine import CHECKOUT, machine
from benchmarks.harness.payloads import Wire, encode
from benchmarks.harness.peers import Conch, Server
from benchmarks.harness.repositories import compose, own
from benchmarks.harness.workloads import echo, vector
from benchmarks.llm.model import write_gguf

CONCH, WRK, H2LOAD = "conch bench", "wrk", "h2load"
USERS, STREAMS = 16, 4
PROMPT_TOKENS, OUTPUT_TOKENS = 32, 64
STREAMS_OF_A_ROUND = 40
_TIMEOUT_S = 180
_LLM = "random"


@dataclass(frozen=True)
class Reading:
    """What a tool says of one round. `first_ms` is the time to the first token, `gap_ms` that between tokens."""

    rate: float
    p50_ms: float
    p99_ms: float
    requests: int
    cpu_s: float = 0.0
    first_ms: float | None = None
    gap_ms: float | None = None


@dataclass
class ToolTable:
    """All rounds of one work, by tool; `errors` says why one has none."""

    work: str
    rounds: dict[str, list[Reading]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)


Tool = Callable[[], Reading]


def bench_tools(
    rounds: Annotated[int, typer.Option(help="rounds; the tools take turns in each")] = 5,
    seconds: Annotated[int, typer.Option(help="how long a tool measures in a round")] = 4,
    json_file: Annotated[Path | None, typer.Option("--json", help="write all figures to this file")] = None,
) -> None:
    """Compare `conch bench` with wrk, h2load, perf_analyzer, aiperf and GuideLLM."""
    console = Console()
    measured_on = machine()
    conch, others = ConchInstall(CHECKOUT, CHECKOUT / ".bench"), LoadToolsInstall(CHECKOUT / ".bench")
    with console.status("install the tools (when they have changed)"):
        conch.ensure()
        others.ensure()
    with tempfile.TemporaryDirectory(prefix="conch-tools-") as scratch, _served(conch, Path(scratch)) as server:
        tools = LoadTools(server, conch, others, Path(scratch), seconds)
        tables = []
        for work, named in tools.works().items():
            with console.status(work) as status:
                tables.append(measure(work, named, rounds, status.update))
            console.print(markdown(tables[-1]), markup=False, soft_wrap=True)
        started = tools.starts(rounds)
    console.print(start_table(started, tools.sizes()), markup=False, soft_wrap=True)
    for name, value in measured_on.items():
        console.print(f"{name}: {value}", style="dim", soft_wrap=True)
    if json_file is not None:
        document = {"machine": measured_on, "works": [_plain(table) for table in tables], "start": started}
        json_file.write_text(json.dumps(document, indent=2) + "\n")


def measure(work: str, tools: Mapping[str, Tool], rounds: int, progress: Callable[[str], None]) -> ToolTable:
    """Run all tools in turn, the one that begins being another each round."""
    table = ToolTable(work)
    names = list(tools)
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            progress(f"{work}: round {number + 1} of {rounds}, {name}")
            try:
                before = _children_cpu_s()
                reading = tools[name]()
                cost = _children_cpu_s() - before
            except (LoadError, OSError, ValueError, KeyError) as error:
                table.errors[name] = f"{type(error).__name__}: {error}"
                continue
            table.rounds.setdefault(name, []).append(
                Reading(**{**vars(reading), "cpu_s": cost})  # of everything the tool started and waited for
            )
    return table


class LoadTools:
    """The tools, each as a function that runs one round against a server."""

    def __init__(
        self, server: Server, conch: ConchInstall, others: LoadToolsInstall, scratch: Path, seconds: int
    ) -> None:
        self._server = server
        self._conch = conch
        self._others = others
        self._scratch = scratch
        self._seconds = seconds
        self._question = echo("identity", vector(batched=True))

    def works(self) -> dict[str, dict[str, Tool]]:
        """Return the tools of each work by their names."""
        http_url, grpc_url = self._server.http_address, f"grpc://{self._server.grpc_address}"
        users = [f"--concurrency={USERS}", f"--duration={self._seconds}s", "--warm-up=1s"]
        streams = [
            f"--concurrency={STREAMS}",
            f"--requests={STREAMS_OF_A_ROUND}",
            f"--prompt-tokens={PROMPT_TOKENS}",
            f"--output-tokens={OUTPUT_TOKENS}",
            "--warm-up=1s",
            "--endpoint=v1/completions",
        ]
        return {
            f"HTTP, JSON tensors, {USERS} users": {
                WRK: self._wrk,
                CONCH: partial(
                    self._bench,
                    http_url,
                    "identity",
                    "http",
                    [*users, "--json-tensors"],
                ),
                PERF_ANALYZER: partial(self._perf_analyzer, "http"),
            },
            f"gRPC, {USERS} users": {
                H2LOAD: self._h2load,
                CONCH: partial(self._bench, grpc_url, "identity", "grpc", users),
                PERF_ANALYZER: partial(self._perf_analyzer, "grpc"),
            },
            f"OpenAI completions, {STREAMS} streams of {OUTPUT_TOKENS} tokens": {
                CONCH: partial(self._bench, http_url, _LLM, "openai", streams),
                AIPERF: self._aiperf,
                GUIDELLM: self._guidellm,
            },
        }

    def starts(self, rounds: int) -> dict[str, list[float]]:
        """Return the seconds from the start of each tool to its first byte at a server."""
        times: dict[str, list[float]] = {}
        for _ in range(rounds):
            for name, command, environment in self._start_commands():
                times.setdefault(name, []).append(_seconds_to_first_request(command, environment))
        return times

    def sizes(self) -> dict[str, int]:
        """Return what each tool takes on disk with its requirements, in bytes; Conch as a whole, without extras."""
        sizes = {name: self._others.size_bytes(name) for name in (PERF_ANALYZER, AIPERF, GUIDELLM)}
        return {CONCH: base_install_bytes("conch-server", self._conch.site_packages), **sizes}

    def _start_commands(self) -> Iterator[tuple[str, Callable[[str], list[str]], Mapping[str, str] | None]]:
        conch = [str(self._conch.python), "-m", "conch", "bench"]
        yield CONCH, lambda address: [*conch, address, "-m", "x", "--protocol=http"], None
        analyzer = [self._others.program(PERF_ANALYZER), "-m", "x", "-u"]
        yield PERF_ANALYZER, lambda address: [*analyzer, address], self._others.environment(PERF_ANALYZER)
        yield AIPERF, self._aiperf_command, self._others.environment(AIPERF)
        yield GUIDELLM, self._guidellm_command, self._others.environment(GUIDELLM)

    def _bench(self, url: str, model: str, protocol: str, arguments: Sequence[str]) -> Reading:
        document = self._scratch / "bench.json"
        command = [str(self._conch.python), "-m", "conch", "bench", url, model, f"--protocol={protocol}", "--quiet"]
        _run([*command, *arguments, f"--json={document}"], None)
        (measured,) = json.loads(document.read_bytes())["measurements"]
        latency, tokens = measured["latency"], measured["tokens"]
        return Reading(
            measured["throughput"]["value"],
            latency["percentiles"]["50"]["value"] * 1e3,
            latency["percentiles"]["99"]["value"] * 1e3,
            measured["requests"],
            first_ms=None if tokens is None else tokens["first_token"]["percentiles"]["50"]["value"] * 1e3,
            gap_ms=None if tokens is None else tokens["inter_token"]["mean"]["value"] * 1e3,
        )

    def _wrk(self) -> Reading:
        payload = encode(self._question, Wire.JSON)
        body = self._scratch / "wrk.body"
        body.write_bytes(payload.body)
        return _of(wrk(self._server.http_address, payload, body, USERS, self._seconds))

    def _h2load(self) -> Reading:
        payload = encode(self._question, Wire.GRPC)
        body = self._scratch / "h2load.body"
        body.write_bytes(payload.body)
        requests = 5000 * self._seconds
        answer_bytes = grpc_answer_bytes(self._server, payload)
        return _of(h2load(self._server.grpc_address, payload, body, USERS, requests, answer_bytes=answer_bytes))

    def _perf_analyzer(self, protocol: str) -> Reading:
        address = self._server.http_address if protocol == "http" else self._server.grpc_address
        table = self._scratch / "perf_analyzer.csv"
        command = [self._others.program(PERF_ANALYZER), "-m", "identity", "-u", address, "-i", protocol]
        # It repeats its window until three agree within this percentage: any three.
        command += [f"--concurrency-range={USERS}", f"--measurement-interval={self._seconds * 1000 // 3}"]
        command += ["--stability-percentage=999", "--percentile=99", "-f", str(table)]
        if protocol == "http":
            command += ["--input-tensor-format=json", "--output-tensor-format=json"]
        _run(command, self._others.environment(PERF_ANALYZER))
        (row,) = csv.DictReader(table.read_text().splitlines())
        rate = float(row["Inferences/Second"])
        p50, p99 = float(row["p50 latency"]) / 1e3, float(row["p99 latency"]) / 1e3
        return Reading(rate, p50, p99, round(rate * self._seconds))

    def _aiperf_command(self, address: str) -> list[str]:
        command = [self._others.program(AIPERF), "profile", "--model", _LLM, "--url", f"http://{address}"]
        command += ["--endpoint-type", "completions", "--streaming", "--concurrency", str(STREAMS)]
        command += ["--request-count", str(STREAMS_OF_A_ROUND), "--tokenizer", TOKENIZER, "--use-server-token-count"]
        command += ["--synthetic-input-tokens-mean", str(PROMPT_TOKENS), "--output-tokens-mean", str(OUTPUT_TOKENS)]
        command += ["--extra-inputs", "ignore_eos:true", "--ui", "none"]
        return [*command, "--artifact-dir", str(self._scratch / "aiperf")]

    def _aiperf(self) -> Reading:
        _run(self._aiperf_command(self._server.http_address), self._others.environment(AIPERF))
        figures = json.loads((self._scratch / "aiperf" / "profile_export_aiperf.json").read_bytes())
        latency = figures["request_latency"]
        return Reading(
            figures["request_throughput"]["avg"],
            latency["p50"],
            latency["p99"],
            int(figures["request_count"]["avg"]),
            first_ms=figures["time_to_first_token"]["p50"],
            gap_ms=figures["inter_token_latency"]["avg"],
        )

    def _guidellm_command(self, address: str) -> list[str]:
        backend = f"kind=openai_http,target=http://{address},model={_LLM},request_format=/v1/completions"
        data = f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={OUTPUT_TOKENS}"
        command = [self._others.program(GUIDELLM), "run", "--backend", backend, "--data", data]
        command += ["--profile", f"kind=concurrent,streams={STREAMS}"]
        command += ["--constraint", f"kind=max_requests,count={STREAMS_OF_A_ROUND}"]
        command += ["--tokenizer", f"kind=hf_auto,model={self._others.tokenizer}", "--disable-console-interactive"]
        return [*command, "--output", f"kind=json,path={self._scratch / 'guidellm.json'}"]

    def _guidellm(self) -> Reading:
        _run(self._guidellm_command(self._server.http_address), self._others.environment(GUIDELLM))
        (benchmark,) = json.loads((self._scratch / "guidellm.json").read_bytes())["benchmarks"]
        metrics = benchmark["metrics"]
        figures = {name: metric["successful"] for name, metric in metrics.items() if metric and "successful" in metric}
        latency = figures["request_latency"]
        return Reading(
            figures["requests_per_second"]["mean"],
            latency["percentiles"]["p50"] * 1e3,
            latency["percentiles"]["p99"] * 1e3,
            STREAMS_OF_A_ROUND,
            first_ms=figures["time_to_first_token_ms"]["percentiles"]["p50"],
            gap_ms=figures["inter_token_latency_ms"]["mean"],
        )


def markdown(table: ToolTable) -> str:
    """Return the rounds as a table: medians and, of the rate, the range."""
    reference = next(iter(table.rounds), None)
    lines = [
        f"{table.work}:",
        "",
        "| tool | req/s | to the first | P50 ms | P99 ms | TTFT P50 ms | ITL ms | CPU s/1000 requests |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, readings in table.rounds.items():
        rates = [reading.rate for reading in readings]
        ratios = [
            ours.rate / theirs.rate for ours, theirs in zip(readings, table.rounds[reference or name], strict=False)
        ]
        cells = [
            f"{_middle(rates)} ({min(rates):,.0f}–{max(rates):,.0f})",
            f"{statistics.median(ratios):.2f}",
            _middle([reading.p50_ms for reading in readings]),
            _middle([reading.p99_ms for reading in readings]),
            _middle([reading.first_ms for reading in readings]),
            _middle([reading.gap_ms for reading in readings]),
            _middle([reading.cpu_s / reading.requests * 1000 for reading in readings]),
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += [f"\n{name}: {error}" for name, error in table.errors.items()]
    return "\n".join(lines) + "\n"


def start_table(times: Mapping[str, Sequence[float]], sizes: Mapping[str, int]) -> str:
    """Return start-up times and installed sizes as a table."""
    lines = ["| tool | start to first request s | installed MB |", "| --- | ---: | ---: |"]
    lines += [
        f"| {name} | {statistics.median(duration):.2f} | {sizes[name] / 1e6:,.0f} |" for name, duration in times.items()
    ]
    return "\n".join(lines) + "\n"


def base_install_bytes(name: str, site_packages: Path) -> int:
    """Return the size of an installed package and of what it requires, without extras."""
    installed = {
        distribution.metadata["Name"].lower().replace("_", "-"): distribution
        for distribution in distributions(path=[str(site_packages)])
    }
    wanted, known = [name], {name}
    size = 0
    while wanted:
        distribution = installed.get(wanted.pop())
        if distribution is None:  # for another Python or platform
            continue
        paths = (Path(str(distribution.locate_file(file))) for file in distribution.files or ())
        size += sum(path.stat().st_size for path in paths if path.is_file())
        for requirement in distribution.requires or ():
            required = re.match(r"[\w.-]+", requirement)
            if (
                required
                and "extra ==" not in requirement
                and (key := required[0].lower().replace("_", "-")) not in known
            ):
                known.add(key)
                wanted.append(key)
    return size


def _middle(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return ""
    middle = statistics.median(known)
    return f"{middle:,.0f}" if middle >= 100 else f"{middle:.3g}"


def _of(load: Load) -> Reading:
    return Reading(load.rate, load.median_us / 1e3, load.p99_us / 1e3, load.requests)


def _plain(table: ToolTable) -> dict[str, object]:
    rounds = {name: [vars(reading) for reading in readings] for name, readings in table.rounds.items()}
    return {"work": table.work, "rounds": rounds, "errors": table.errors}


def _run(command: Sequence[str], environment: Mapping[str, str] | None) -> None:
    """Run a tool. Raises LoadError with the end of its output if it fails."""
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise LoadError(f"{command[0]} did not end within {_TIMEOUT_S} s") from error
    if done.returncode:
        raise LoadError(
            f"{Path(command[0]).name} ended with status {done.returncode}: {(done.stderr or done.stdout)[-800:]}"
        )


def _children_cpu_s() -> float:
    """Return the CPU time of processes that have ended and been waited for, with their own children."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


class _Refuses(http.server.BaseHTTPRequestHandler):
    """Answers everything with 404, and notes when the first request came."""

    def handle_one_request(self) -> None:
        if not self.server.first_request:  # type: ignore[attr-defined]
            self.server.first_request.append(time.monotonic())  # type: ignore[attr-defined]
        super().handle_one_request()

    def do_GET(self) -> None:
        self.send_error(404)

    do_POST = do_GET  # noqa: N815 - the base class looks it up by this name

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""


def _seconds_to_first_request(command: Callable[[str], list[str]], environment: Mapping[str, str] | None) -> float:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Refuses) as server:
        server.first_request = []  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_address[1]}"
        began = time.monotonic()
        subprocess.run(command(address), env=environment, capture_output=True, timeout=_TIMEOUT_S, check=False)
        server.shutdown()
        times: list[float] = server.first_request  # type: ignore[attr-defined]
        return times[0] - began if times else float("nan")


@contextmanager
def _served(conch: ConchInstall, scratch: Path) -> Iterator[Server]:
    """Serve the identity model and a small language model."""
    repository = scratch / "repository"
    compose(own(identity="identity"), repository, only_python=False)
    write_gguf(scratch / "model.gguf")
    version = repository / _LLM / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text('backend: "openvino_genai"\n')
    (version / "model.json").write_text(json.dumps({"model": str(scratch / "model.gguf"), "cache_size": 1}))
    with Server(Conch(conch), repository, scratch / "server.log") as server:
        yield server


if __name__ == "__main__":
    typer.run(bench_tools)
