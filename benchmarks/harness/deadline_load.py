"""Deadlines and shares under overload, by h2load: see `benchmarks.overload --deadlines`.

h2load keeps no more than its connections waiting and sends at a fixed rate, so requests beyond the capacity must be
refused or dropped. What counts is how many are answered within the deadline: by h2load's log over HTTP, by the server's
counters over gRPC, whose errors h2load takes for answers. Executions that were late, or for nothing, are wasted work.
"""

import json
import re
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import pairwise
from pathlib import Path
from statistics import median
from subprocess import DEVNULL, Popen
from tempfile import TemporaryDirectory
from time import perf_counter, sleep

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save
from rich.table import Table

from benchmarks.harness.load import LoadError
from benchmarks.harness.payloads import Payload, Question, Wire, encode
from benchmarks.harness.peers import Server
from benchmarks.harness.repositories import MODELS, compose
from benchmarks.harness.workloads import echo, vector

GOODPUT_TARGET = 0.95
SHARE_TOLERANCE = 0.05
ROUNDS = 4
PEAK_SECONDS, OVERLOAD_SECONDS = 5, 8
TENANT_HEADER = "x-tenant"
FLAGS = (f"--limits-tenant-header={TENANT_HEADER}",)
LIMITS = 'limits:\n  - {tenant: "*", weight: 1}\n  - {model: weighted, tenant: modest, weight: 3}\n'
STAGES = ("estimate", "arrival", "queue", "execution", "late")
_SUCCESS = "nv_inference_request_success"
_EDGE_S = 1  # at the begin and the end of h2load, which do not count
_WIDTH, _LAYERS = 1024, 40  # of the ONNX model
_LLM_WORDS, _LLM_RUNNING, _LLM_STEP_MS = 16, 8, 5


@dataclass(frozen=True)
class DeadlineWork:
    """One model under overload: `clients` keep it busy; requests have `deadline_ms`."""

    name: str
    model: str
    payload: Payload
    deadline_ms: int
    clients: int
    http1: bool


@dataclass
class DeadlineResult:
    """Rates per second, round by round: `peak` before the first and after each. `misses` are requests by stage."""

    work: str
    deadline_ms: int
    peak: list[float] = field(default_factory=list)
    offered: list[float] = field(default_factory=list)
    good: list[float] = field(default_factory=list)
    misses: dict[str, int] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """The median of the answers in time to the mean of the peaks before and after."""
        around = [(before + after) / 2 for before, after in pairwise(self.peak)]
        return median(good / peak for good, peak in zip(self.good, around, strict=True))


@dataclass
class ShareResult:
    """The share of a modest tenant's answers beside one that floods, in each round; `fair` is what its weight says."""

    model: str
    fair: float
    shares: list[float] = field(default_factory=list)


def write_deadline_models(directory: Path) -> None:
    """Write five models and a language model: one by one, in batches, ONNX, an ensemble."""
    compose({"busy": MODELS / "busy", "quick": MODELS / "identity_unbatched"}, directory, only_python=False)
    _write_onnx(directory / "layers")
    for name in ("slept", "shared", "weighted"):
        compose({name: MODELS / "sleep"}, directory, only_python=False)
        code = directory / name / "1" / "model.py"
        code.write_text(code.read_text().replace("SECONDS = 0.002", "SECONDS = 0.04"))
    tensor = '{ name: "%s" data_type: TYPE_FP32 dims: [ 16 ] }'
    steps = " ".join(
        f'step {{ model_name: "{model}" model_version: -1 input_map {{ key: "INPUT0" value: "{takes}" }} '
        f'output_map {{ key: "OUTPUT0" value: "{gives}" }} }}'
        for model, takes, gives in (("quick", "INPUT0", "middle"), ("busy", "middle", "OUTPUT0"))
    )
    (directory / "pipeline" / "1").mkdir(parents=True)
    (directory / "pipeline" / "config.pbtxt").write_text(
        f'platform: "ensemble" input {tensor % "INPUT0"} output {tensor % "OUTPUT0"} ensemble_scheduling {{ {steps} }}'
    )
    (directory / "llm" / "1").mkdir(parents=True)
    (directory / "llm" / "config.pbtxt").write_text('backend: "scripted"\n')
    script = {"reply": "word " * _LLM_WORDS, "step_ms": _LLM_STEP_MS, "max_running": _LLM_RUNNING}
    (directory / "llm" / "1" / "model.json").write_text(json.dumps(script))


def _write_onnx(folder: Path) -> None:
    """Write a model of some layers, which computes a batch of 16 in some ten milliseconds."""
    weights = numpy_helper.from_array(np.zeros((_WIDTH, _WIDTH), np.float32), "W")
    names = ["IN", *(f"h{number}" for number in range(1, _LAYERS)), "OUT"]
    nodes = [helper.make_node("MatMul", [before, "W"], [after]) for before, after in pairwise(names)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", _WIDTH]) for name in ("IN", "OUT")]
    graph = helper.make_graph(nodes, "layers", ends[:1], ends[1:], [weights])
    (folder / "1").mkdir(parents=True)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    save(model, folder / "1" / "model.onnx")
    (folder / "config.pbtxt").write_text('backend: "onnxruntime" max_batch_size: 32 dynamic_batching { }\n')


def deadline_works() -> list[DeadlineWork]:
    """Return what is measured, over both protocols, batches of 16 included."""
    row = vector(batched=True)
    sixteen = np.repeat(row, 16, axis=0)
    busy, pipeline = echo("busy", vector(batched=False)), echo("pipeline", vector(batched=False))
    layers = Question("layers", {"IN": np.zeros((16, _WIDTH), np.float32)}, "OUT", check=lambda _: None)
    works = [
        _work("one-by-one", busy, Wire.BINARY, 150, 32),
        _work("one-by-one", busy, Wire.GRPC, 150, 32),
        _work("batching", echo("slept", row), Wire.BINARY, 200, 128),
        _work("batching", echo("slept", row), Wire.GRPC, 200, 128),
        # The clients of h2load send at the same moments: with more of them, bursts are further apart than the deadline.
        _work("batches-of-16", echo("slept", sixteen), Wire.BINARY, 400, 16),
        _work("batches-of-16", echo("slept", sixteen), Wire.GRPC, 400, 32),
        _work("onnx-of-16", layers, Wire.BINARY, 400, 32),
        _work("ensemble", pipeline, Wire.BINARY, 150, 32),
        _work("ensemble", pipeline, Wire.GRPC, 150, 32),
    ]
    body = json.dumps({"model": "llm", "prompt": "Hello", "max_tokens": _LLM_WORDS}).encode()
    payload = Payload("/v1/completions", body, {"content-type": "application/json"})
    return [*works, DeadlineWork("language-model-http", "llm", payload, 500, 64, http1=True)]


def _work(name: str, question: Question, wire: Wire, deadline_ms: int, clients: int) -> DeadlineWork:
    kind = "http" if wire.is_http else "grpc"
    return DeadlineWork(f"{name}-{kind}", question.model, encode(question, wire), deadline_ms, clients, wire.is_http)


def measure_deadlines(server: Server, work: DeadlineWork, times: float) -> DeadlineResult:
    """Measure peak and goodput in turns."""
    result = DeadlineResult(work.name, work.deadline_ms, [_peak(server, work)])
    for _ in range(ROUNDS):
        rate = times * result.peak[-1]
        with TemporaryDirectory() as scratch:
            log = Path(scratch) / "log"
            command = _command(server, work, Path(scratch), OVERLOAD_SECONDS, rate, log=log)
            before, after, took = _sampled(server, work.model, command, OVERLOAD_SECONDS)
            started, statuses, durations = np.loadtxt(log, ndmin=2, unpack=True)
        late = after["late"] - before["late"]
        good = (after[_SUCCESS] - before[_SUCCESS] - late) / took
        if work.http1:
            ended = started + durations - started.min()
            middle = (ended > _EDGE_S * 1e6) & (ended < (OVERLOAD_SECONDS - _EDGE_S) * 1e6)
            in_time = middle & (statuses == HTTPStatus.OK) & (durations <= work.deadline_ms * 1000)
            good = float(np.sum(in_time)) / (OVERLOAD_SECONDS - 2 * _EDGE_S)
        result.offered.append(len(statuses) / OVERLOAD_SECONDS)
        result.good.append(good)
        for stage in STAGES:
            result.misses[stage] = result.misses.get(stage, 0) + after[stage] - before[stage]
        result.peak.append(_peak(server, work))
    return result


def _sampled(
    server: Server, model: str, command: Sequence[str], seconds: int
) -> tuple[dict[str, int], dict[str, int], float]:
    """Run h2load; return the counters near its begin and near its end, and the seconds between."""
    program = Popen(command, stdout=DEVNULL, stderr=DEVNULL)
    sleep(_EDGE_S)
    before, began = _counters(server, model), perf_counter()
    sleep(seconds - 2 * _EDGE_S)
    after, took = _counters(server, model), perf_counter() - began
    if program.wait(60):
        raise LoadError(f"h2load ended with status {program.returncode}")
    return before, after, took


def measure_shares(server: Server, model: str, weight: int) -> ShareResult:
    """Let one tenant flood a model, while another one asks for its share and some more."""
    payload = encode(echo(model, vector(batched=True)), Wire.BINARY)
    result = ShareResult(model, weight / (1 + weight))
    work = DeadlineWork(model, model, payload, 0, 128, http1=True)
    peak = _peak(server, work)
    for _ in range(ROUNDS):
        with TemporaryDirectory() as scratch:
            logs = {tenant: Path(scratch) / tenant for tenant in ("flood", "modest")}
            commands = [
                _command(server, work, Path(scratch), OVERLOAD_SECONDS, rate, log=log, headers={TENANT_HEADER: tenant})
                for (tenant, log), rate in zip(logs.items(), (3 * peak, 1.2 * result.fair * peak), strict=True)
            ]
            programs = [Popen(command, stdout=DEVNULL, stderr=DEVNULL) for command in commands]
            for program in programs:
                program.wait()
            answers = {}
            for tenant, log in logs.items():
                started, statuses = np.loadtxt(log, usecols=(0, 1), ndmin=2, unpack=True)
                middle = (started - started.min() > 1e6) & (started - started.min() < (OVERLOAD_SECONDS - 1) * 1e6)
                answers[tenant] = int(np.sum(middle & (statuses == HTTPStatus.OK)))
        result.shares.append(answers["modest"] / max(sum(answers.values()), 1))
    return result


def _peak(server: Server, work: DeadlineWork) -> float:
    """Return the rate at which requests without deadlines are answered to as many clients as keep the model busy."""
    with TemporaryDirectory() as scratch:
        command = _command(server, work, Path(scratch), PEAK_SECONDS, 0)
        before, after, took = _sampled(server, work.model, command, PEAK_SECONDS)
    return (after[_SUCCESS] - before[_SUCCESS]) / took


def _command(
    server: Server,
    work: DeadlineWork,
    scratch: Path,
    seconds: int,
    rate: float,
    *,
    log: Path | None = None,
    headers: Mapping[str, str] | None = None,
) -> list[str]:
    """Return the call of h2load: `rate` requests a second with the deadline; 0 is as fast as they are answered."""
    body = scratch / f"body-{log.name if log else 'peak'}"
    body.write_bytes(work.payload.body)
    command = ["h2load", f"--data={body}", f"--duration={seconds}", "--threads=1"]
    fields = {**work.payload.headers, **(headers or {})}
    if work.http1:
        command += ["--h1", f"--clients={work.clients}"]
        address, share = server.http_address, work.clients
    else:
        command += ["--clients=4", f"--max-concurrent-streams={work.clients // 4}"]
        address, share = server.grpc_address, 4
    if rate:
        command.append(f"--rps={max(round(rate / share), 1)}")
        if work.deadline_ms:
            name, value = ("x-request-deadline", f"{work.deadline_ms}ms")
            if not work.http1:
                name, value = ("grpc-timeout", f"{work.deadline_ms}m")
            fields[name] = value
    if log is not None:
        command.append(f"--log-file={log}")
    command += [f"--header={name}: {value}" for name, value in fields.items()]
    return [*command, f"http://{address}{work.payload.path}"]


def _counters(server: Server, model: str) -> dict[str, int]:
    """Return how many requests a model has answered, and the missed deadlines by stage."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.ports.metrics}/metrics", timeout=30) as response:
        text = response.read().decode()
    match = re.search(rf'^{_SUCCESS}{{model="{model}",version="1"}} (\S+)$', text, re.MULTILINE)
    counts = {_SUCCESS: int(float(match[1])) if match else 0}
    for stage in STAGES:
        labels = f'model="{model}",stage="{stage}",version="1"'
        match = re.search(rf"^conch_deadline_misses_total{{{labels}}} (\S+)$", text, re.MULTILINE)
        counts[stage] = int(float(match[1])) if match else 0
    return counts


def deadline_table(results: Sequence[DeadlineResult], shares: Sequence[ShareResult]) -> Table:
    """Return a row for each work and each pair of tenants."""
    drawn = Table(caption="medians of rates per second; misses are requests of all rounds")
    for heading in ("work", "deadline", "peak", "offered", "in time", "ratio", "late", "refused", "dropped", "share"):
        drawn.add_column(heading, justify="left" if heading == "work" else "right")
    for result in results:
        rates = [f"{median(rates):,.0f}" for rates in (result.peak, result.offered, result.good)]
        refused = result.misses.get("estimate", 0) + result.misses.get("arrival", 0)
        dropped = result.misses.get("queue", 0) + result.misses.get("execution", 0)
        late = f"{result.misses['late']:,}"
        row = (f"{result.deadline_ms} ms", *rates, f"{result.ratio:.2f}", late, f"{refused:,}", f"{dropped:,}", "")
        drawn.add_row(result.work, *row)
    for share in shares:
        drawn.add_row(f"tenants of {share.model}", *[""] * 8, f"{median(share.shares):.3f} of {share.fair:.3f}")
    return drawn


def met(results: Sequence[DeadlineResult], shares: Sequence[ShareResult]) -> bool:
    """Whether goodput and shares are as they should be."""
    return all(result.ratio >= GOODPUT_TARGET for result in results) and all(
        abs(median(share.shares) - share.fair) <= SHARE_TOLERANCE for share in shares
    )
