"""`conch tune` beside NVIDIA's Model Analyzer: the same server, grid, load, goal and time.

Run as `python -m benchmarks.tuning --help`. What each tuner found is then measured by `conch bench`, in rounds of
changing order beside the configuration of the start. Model Analyzer works in its remote mode, which loads
configurations through the repository API, on the grid that its mode `brute` is given. It has no time budget: it is
interrupted as with Ctrl-C, finishes its measurement, and its best result is read from its checkpoint.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks.harness.conch_install import ConchInstall
from benchmarks.harness.load_tools_install import MODEL_ANALYZER, PERF_ANALYZER, LoadToolsInstall
from benchmarks.harness.machine import CHECKOUT, machine
from benchmarks.harness.peers import Conch, Peer, Server, Triton
from benchmarks.harness.repositories import compose, own
from benchmarks.harness.triton_install import TritonInstall
from conch.measure.tune.knobs import Document
from conch.measure.tune.repository_client import RepositoryClient, ServerAccess

MODEL, DEFAULT, CONCH_TUNE, ANALYZER = "busy", "default", "conch tune", "Model Analyzer"
INSTANCES, BATCH_SIZES = (1, 2, 3, 4), (1, 2, 4, 8)
USERS = 16
_GRACE_S = 60
_CONFIG = """
backend: "python"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
dynamic_batching { }
"""


@dataclass(frozen=True)
class TunerResult:
    """What a tuner says: its configuration (None: none better, or none found), trials, and the time that it took."""

    config: Document | None
    trials: int
    took_s: float
    note: str = ""


@dataclass
class ServerTable:
    """The results on one server: requests/s and P99 ms of each round, by tuner."""

    server: str
    results: dict[str, TunerResult] = field(default_factory=dict)
    rounds: dict[str, list[tuple[float, float]]] = field(default_factory=dict)


def tuning(
    budget: Annotated[int, typer.Option(help="seconds for each tuner")] = 180,
    max_p99: Annotated[int, typer.Option(help="constraint, in ms")] = 400,
    rounds: Annotated[int, typer.Option(help="rounds of the final comparison")] = 5,
    seconds: Annotated[int, typer.Option(help="window of each measurement in it")] = 4,
    install: Annotated[bool, typer.Option(help="complete .bench first; otherwise use it as it is")] = True,
    json_file: Annotated[Path | None, typer.Option("--json", help="write all figures to this file")] = None,
) -> None:
    """Compare `conch tune` with Model Analyzer on Conch and on Triton."""
    console = Console()
    measured_on = machine()
    bench = CHECKOUT / ".bench"
    conch, triton, tools = ConchInstall(CHECKOUT, bench), TritonInstall(bench), LoadToolsInstall(bench)
    if install:
        conch.ensure()
        triton.ensure()
        tools.ensure((PERF_ANALYZER, MODEL_ANALYZER))
    tables = []
    for peer in (Conch(conch), Triton(triton)):
        with tempfile.TemporaryDirectory(prefix="conch-tuning-") as scratch:
            tables.append(_compare(peer, tools, Path(scratch), budget, max_p99, rounds, seconds))
        console.print(markdown(tables[-1]), markup=False, soft_wrap=True)
    for name, value in measured_on.items():
        console.print(f"{name}: {value}", style="dim", soft_wrap=True)
    if json_file is not None:
        plain = [{"server": table.server, "rounds": table.rounds, "found": _plain(table.results)} for table in tables]
        json_file.write_text(json.dumps({"machine": measured_on, "servers": plain}, indent=2) + "\n")


def _compare(
    peer: Peer, tools: LoadToolsInstall, scratch: Path, budget: int, max_p99: int, rounds: int, seconds: int
) -> ServerTable:
    repository = scratch / "models"
    compose(own(**{MODEL: MODEL}), repository, only_python=peer.only_python)
    (repository / MODEL / "config.pbtxt").write_text(_CONFIG)
    table = ServerTable(peer.name)
    with Server(_Explicit(peer), repository, scratch / "server.log") as server:
        client = RepositoryClient(ServerAccess(f"http://{server.http_address}"))
        client.load(MODEL)
        default = client.config(MODEL)
        table.results[DEFAULT] = TunerResult(default, 0, 0.0)
        table.results[CONCH_TUNE] = _conch_tune(server, default, scratch, budget, max_p99)
        client.load(MODEL, default)
        table.results[ANALYZER] = _model_analyzer(server, tools, repository, scratch, budget, max_p99)
        _measure(table, server, client, scratch, rounds, seconds)
    return table


class _Explicit:
    """A peer that loads models on request."""

    only_python = True

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self.name, self.ready_path = peer.name, peer.ready_path
        self.flags, self.environment, self.packages = peer.flags, peer.environment, peer.packages

    def command(self, repository: Path) -> list[str]:
        """Return the peer's command line in explicit mode."""
        return [*self._peer.command(repository), "--model-control-mode=explicit"]


def _conch_tune(server: Server, default: Document, scratch: Path, budget: int, max_p99: int) -> TunerResult:
    report = scratch / "tune.json"
    command = [sys.executable, "-m", "conch", "tune", MODEL, "--url", f"http://{server.http_address}"]
    command += [f"--max-p99={max_p99}ms", f"--concurrency={USERS}", f"--time-budget={budget}s", "--share=100"]
    command += ["--knob", f"instances={_list(INSTANCES)}", "--knob", f"max_batch_size={_list(BATCH_SIZES)}"]
    command += ["--fresh", f"--state-dir={scratch / 'state'}", f"--json={report}"]
    output, took = _run(command, scratch, budget, {})
    if not report.exists():
        return TunerResult(None, 0, took, output[-300:])
    outcome = json.loads(report.read_text())
    settings = next(
        (finalist["settings"] for finalist in outcome["finalists"] if finalist["name"] == outcome["winner"]), None
    )
    if settings is None:
        return TunerResult(None, len(outcome["trials"]), took, "kept the current configuration")
    group = [{"count": settings["instances"], "kind": "KIND_CPU"}]
    config = {**default, "max_batch_size": settings["max_batch_size"], "instance_group": group}
    return TunerResult(config, len(outcome["trials"]), took)


def _model_analyzer(
    server: Server, tools: LoadToolsInstall, repository: Path, scratch: Path, budget: int, max_p99: int
) -> TunerResult:
    profile = scratch / "profile.yml"
    checkpoints = scratch / "checkpoints"
    # JSON is YAML. A window of a second is repeated at least three times: the three seconds of `conch tune`.
    profile.write_text(
        json.dumps(
            {
                "model_repository": str(repository),
                "output_model_repository_path": str(scratch / "variants"),
                "checkpoint_directory": str(checkpoints),
                "export_path": str(scratch / "results"),
                "triton_launch_mode": "remote",
                "triton_http_endpoint": server.http_address,
                "triton_grpc_endpoint": server.grpc_address,
                "triton_metrics_url": f"http://127.0.0.1:{server.ports.metrics}/metrics",
                "client_protocol": "http",
                "dcgm_disable": True,
                "perf_analyzer_path": tools.program(PERF_ANALYZER),
                "run_config_search_mode": "brute",
                "skip_detailed_reports": True,
                "profile_models": {
                    MODEL: {
                        "cpu_only": True,
                        "parameters": {"concurrency": [USERS], "batch_sizes": [1]},
                        "model_config_parameters": {
                            "max_batch_size": list(BATCH_SIZES),
                            "instance_group": [[{"kind": "KIND_CPU", "count": [*INSTANCES]}]],
                        },
                        "objectives": {"perf_throughput": 1},
                        "constraints": {"perf_latency_p99": {"max": max_p99}},
                        "perf_analyzer_flags": {"measurement-interval": 1000, "measurement-mode": "time_windows"},
                    }
                },
            }
        )
    )
    command = [tools.program(MODEL_ANALYZER), "profile", "-f", str(profile)]
    output, took = _run(command, scratch, budget, tools.environment(MODEL_ANALYZER))
    saved = sorted(checkpoints.glob("*.ckpt"), key=lambda path: int(path.stem))
    if not saved:
        return TunerResult(None, 0, took, output[-300:])
    return best_of_checkpoint(json.loads(saved[-1].read_text()), max_p99, took)


def best_of_checkpoint(checkpoint: Mapping[str, Any], max_p99: float, took_s: float) -> TunerResult:
    """Return the configuration of the highest throughput within the constraint that a checkpoint holds."""
    trials = []
    for runs in checkpoint["ResultManager.results"]["_results"][MODEL].values():
        run, measurements = runs
        config = run["_model_run_configs"][0]["_model_config_variant"]["model_config"]
        for measurement in measurements.values():
            figures = measurement["_model_config_measurements"][0]["_non_gpu_data_from_tag"]
            value = {name: figure[1]["_value"] for name, figure in figures.items()}
            trials.append((value["perf_throughput"], value["perf_latency_p99"], config))
    allowed = [trial for trial in trials if trial[1] <= max_p99]
    if not allowed:
        return TunerResult(None, len(trials), took_s, "none within the constraint")
    return TunerResult(max(allowed, key=lambda trial: trial[0])[2], len(trials), took_s)


def _measure(
    table: ServerTable, server: Server, client: RepositoryClient, scratch: Path, rounds: int, seconds: int
) -> None:
    report = scratch / "bench.json"
    command = [sys.executable, "-m", "conch", "bench", f"http://{server.http_address}", MODEL, "--protocol=http"]
    command += [f"--concurrency={USERS}", f"--duration={seconds}s", "--warm-up=1s", "--quiet", f"--json={report}"]
    names = [name for name, outcome in table.results.items() if outcome.config is not None]
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            client.load(MODEL, table.results[name].config)
            report.unlink(missing_ok=True)
            subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            (measured,) = json.loads(report.read_bytes())["measurements"]
            p99 = measured["latency"]["percentiles"]["99"]["value"] * 1e3
            table.rounds.setdefault(name, []).append((measured["throughput"]["value"], p99))


def _run(command: list[str], scratch: Path, budget: int, environment: Mapping[str, str]) -> tuple[str, float]:
    """Run a tuner, with Ctrl-C at the end of its budget. Returns what it printed, and how long it took."""
    started = time.monotonic()
    log = scratch / "tuner.log"
    with log.open("wb") as output:
        tuner = subprocess.Popen(
            command, cwd=scratch, stdout=output, stderr=output, env=dict(environment) or None, start_new_session=True
        )
        try:
            tuner.wait(budget)
        except subprocess.TimeoutExpired:
            tuner.send_signal(signal.SIGINT)
            try:
                tuner.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                # With its perf_analyzer, which would load the server during the final rounds.
                os.killpg(tuner.pid, signal.SIGKILL)
                tuner.wait()
    return log.read_text(errors="replace"), time.monotonic() - started


def markdown(table: ServerTable) -> str:
    """Return the results of one server as a table: medians, with their range; gains are medians of the rounds."""
    lines = [
        f"{table.server}:",
        "",
        "| tuner | time s | configurations tried | instances × batch | req/s | to default | P99 ms |",
        "| --- | ---: | ---: | --- | ---: | ---: | ---: |",
    ]
    for name, outcome in table.results.items():
        cells = [f"{outcome.took_s:.0f}", str(outcome.trials)] if outcome.trials else ["", ""]
        if outcome.config is None:
            lines.append(f"| {name} | {' | '.join(cells)} | {outcome.note} | | | |")
            continue
        rates = [rate for rate, _ in table.rounds[name]]
        base = [rate for rate, _ in table.rounds[DEFAULT]]
        gain = statistics.median(rate / before for rate, before in zip(rates, base, strict=True))
        cells += [
            _shape(outcome.config),
            f"{statistics.median(rates):.0f} ({min(rates):.0f}–{max(rates):.0f})",
            f"{gain:.2f}",
            f"{statistics.median(p99 for _, p99 in table.rounds[name]):.0f}",
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _shape(config: Document) -> str:
    groups = config.get("instance_group", config.get("instanceGroup", []))
    batch = config.get("max_batch_size", config.get("maxBatchSize", 0))
    return f"{sum(group.get('count', 1) for group in groups)} × {batch}"


def _plain(results: Mapping[str, TunerResult]) -> dict[str, object]:
    return {name: vars(outcome) for name, outcome in results.items()}


def _list(values: Sequence[int]) -> str:
    return ",".join(map(str, values))


if __name__ == "__main__":
    typer.run(tuning)
