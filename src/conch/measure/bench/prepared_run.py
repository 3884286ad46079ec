"""A benchmark before its load: the servers that answered, what is sent to them, and what is observed of them."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from conch.base.errors import InvalidRequest
from conch.base.http.prometheus import ScrapeSettings
from conch.measure.bench.generator import ScriptSource
from conch.measure.bench.input_settings import DEFAULT_INPUT_DATA, DEFAULT_OUTPUT_TOKENS, PreparedInputs
from conch.measure.bench.inputs.build import prepare_inputs, prepare_trace
from conch.measure.bench.levels import FindMax, LoadLevel
from conch.measure.bench.observers.local_processes import LocalProcesses, is_local
from conch.measure.bench.observers.observer import ServerObserver
from conch.measure.bench.observers.server_metrics import ServerMetrics
from conch.measure.bench.plan import BenchPlan
from conch.measure.bench.targets.target import BenchTarget

if TYPE_CHECKING:
    from conch.domain.load_traces import LoadTrace


@dataclass(frozen=True, slots=True)
class Side:
    """A server in a run, what is sent to it, and what is observed of it."""

    target: BenchTarget
    source: ScriptSource
    observers: tuple[ServerObserver, ...] = ()
    inputs: str = ""  # description of what is sent


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """A plan whose servers have answered and whose requests are made."""

    plan: BenchPlan
    load: tuple[LoadLevel, ...] | FindMax
    side: Side
    against: Side | None = None  # A, the baseline; `side` is B


def side_of(plan: BenchPlan, target: BenchTarget, trace: "LoadTrace | None") -> Side:
    """Return the server with its requests and observers. Raises ConchError."""
    inputs = _inputs(plan, target, trace)
    target = replace(target, notes=(*target.notes, *_cache_notes(target), *inputs.notes))
    return Side(target, _shared(plan, target, inputs.source), _observers(plan, target), inputs.description)


def _cache_notes(target: BenchTarget) -> tuple[str, ...]:
    cache = target.model.config.get("response_cache")
    if not isinstance(cache, dict) or not cache.get("enable"):
        return ()
    text = f"model '{target.model.name}' has response_cache enabled: the server may answer a request that repeats"
    return (f"{text} without running the model",)


def _shared(plan: BenchPlan, target: BenchTarget, source: ScriptSource) -> ScriptSource:
    """Put tensors into shared memory where that is asked for. Raises InvalidRequest, InputError, TargetError."""
    if plan.shared_memory == "cuda":
        raise InvalidRequest("--shared-memory cuda is not supported; use --shared-memory system")
    if plan.shared_memory == "none":
        if plan.output_shared_memory_size is not None:
            raise InvalidRequest("--output-shared-memory-size needs --shared-memory system")
        return source
    from conch.measure.bench.inputs.shared_memory import share_tensors

    return share_tensors(target, source, plan.output_shared_memory_size)


def _inputs(plan: BenchPlan, target: BenchTarget, trace: "LoadTrace | None") -> PreparedInputs:
    """Return the requests; those of a trace with token counts have its lengths."""
    settings = replace(plan.inputs, seed=plan.seed)
    if trace is None or trace.input_tokens is None or settings.input_data != DEFAULT_INPUT_DATA:
        return prepare_inputs(target, settings)
    from conch.measure.bench.inputs.language import RequestSize

    outputs = trace.output_tokens if trace.output_tokens is not None else trace.input_tokens * 0 + DEFAULT_OUTPUT_TOKENS
    hashes = trace.hash_ids or [()] * len(trace.times_s)
    columns = zip(trace.input_tokens.tolist(), outputs.tolist(), hashes, strict=True)
    return prepare_trace(target, settings, [RequestSize(*column) for column in columns])


def _observers(plan: BenchPlan, target: BenchTarget) -> tuple[ServerObserver, ...]:
    observers: list[ServerObserver] = []
    named = plan.metrics_url not in (None, "none")
    url = plan.metrics_url if named else target.metrics_url
    headers = target.endpoint.headers
    if url and plan.metrics_url != "none":
        settings = ScrapeSettings(url, headers, plan.ca_file, verify=not plan.insecure)
        observers.append(ServerMetrics(settings, target.model.name, required=named))
    if plan.gpu_metrics_url:
        from conch.measure.bench.observers.gpu_metrics import GpuMetrics

        observers.append(GpuMetrics(ScrapeSettings(plan.gpu_metrics_url)))
    observers.append(LocalProcesses(target.endpoint.port if is_local(target.endpoint.host) else None))
    return tuple(observers)
