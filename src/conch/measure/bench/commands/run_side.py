"""What a run sends to a server it has found, and what it observes there.

It is imported once the server has been asked: what makes requests takes as long to import as the rest of the command.
"""

from argparse import ArgumentTypeError, Namespace
from dataclasses import replace
from typing import TYPE_CHECKING

from conch.base.command_line.values import fraction
from conch.base.durations import parse_duration
from conch.base.errors import InvalidRequest
from conch.base.scrape import ScrapeSettings
from conch.measure.bench.inputs.build import prepare_inputs, prepare_trace
from conch.measure.bench.inputs.settings import (
    DEFAULT_OUTPUT_TOKENS,
    Amount,
    Cancellation,
    InputSettings,
    OpenAiRoute,
    PreparedInputs,
)
from conch.measure.bench.observers.local_processes import LocalProcesses, is_local
from conch.measure.bench.observers.observer import ServerObserver
from conch.measure.bench.observers.server_metrics import ServerMetrics
from conch.measure.bench.prepared_request import ScriptSource
from conch.measure.bench.run import Side
from conch.measure.bench.targets.target import BenchTarget

if TYPE_CHECKING:
    from conch.domain.load_traces.load_trace import LoadTrace


def side_of(options: Namespace, target: BenchTarget, trace: "LoadTrace | None") -> Side:
    """Return the server with its requests and observers. Raises ConchError."""
    inputs = _inputs(options, target, trace)
    target = replace(target, notes=(*target.notes, *_cache_notes(target), *inputs.notes))
    return Side(target, _shared(options, target, inputs.source), _observers(options, target), inputs.description)


def _cache_notes(target: BenchTarget) -> tuple[str, ...]:
    cache = target.model.config.get("response_cache")
    if not isinstance(cache, dict) or not cache.get("enable"):
        return ()
    text = f"model '{target.model.name}' has response_cache enabled: the server may answer a request that repeats"
    return (f"{text} without running the model",)


def _shared(options: Namespace, target: BenchTarget, source: ScriptSource) -> ScriptSource:
    """Put tensors into shared memory where that is asked for. Raises InvalidRequest, InputError, TargetError."""
    if options.shared_memory == "cuda":
        raise InvalidRequest("--shared-memory cuda is not supported; use --shared-memory system")
    if options.shared_memory == "none":
        if options.output_shared_memory_size is not None:
            raise InvalidRequest("--output-shared-memory-size needs --shared-memory system")
        return source
    from conch.measure.bench.inputs.shared_memory import share_tensors

    return share_tensors(target, source, options.output_shared_memory_size)


def _inputs(options: Namespace, target: BenchTarget, trace: "LoadTrace | None") -> PreparedInputs:
    """Return the requests; those of a trace with token counts have its lengths."""
    settings = input_settings(options)
    if trace is None or trace.input_tokens is None or options.input_data is not None:
        return prepare_inputs(target, settings)
    from conch.measure.bench.inputs.text.language import RequestSize

    outputs = trace.output_tokens if trace.output_tokens is not None else trace.input_tokens * 0 + DEFAULT_OUTPUT_TOKENS
    hashes = trace.hash_ids or [()] * len(trace.times_s)
    columns = zip(trace.input_tokens.tolist(), outputs.tolist(), hashes, strict=True)
    return prepare_trace(target, settings, [RequestSize(*each) for each in columns])


def _observers(options: Namespace, target: BenchTarget) -> tuple[ServerObserver, ...]:
    found: list[ServerObserver] = []
    named = options.metrics_url not in (None, "none")
    url = options.metrics_url if named else target.metrics_url
    headers = target.endpoint.headers
    if url and options.metrics_url != "none":
        settings = ScrapeSettings(url, headers, options.ca_file, verify=not options.insecure)
        found.append(ServerMetrics(settings, target.model.name, required=named))
    if options.gpu_metrics_url:
        from conch.measure.bench.observers.gpu_metrics import GpuMetrics

        found.append(GpuMetrics(ScrapeSettings(options.gpu_metrics_url)))
    found.append(LocalProcesses(target.endpoint.port if is_local(target.endpoint.host) else None))
    return tuple(found)


def input_settings(options: Namespace) -> InputSettings:
    """Return what requests contain. Raises InvalidRequest."""
    return InputSettings(
        input_data=options.input_data or "random",
        images=options.images,
        shapes=dict(_shape(text) for text in options.shape),
        ranges=dict(_value_range(text) for text in options.range),
        batch_size=options.batch_size,
        streaming=not options.no_streaming,
        prompt_tokens=_amount(options.prompt_tokens),
        output_tokens=_amount(options.output_tokens),
        prefix_tokens=options.prefix_tokens,
        prefixes=options.prefixes,
        normalization=options.normalization,
        distinct=options.distinct,
        json_tensors=options.json_tensors,
        tolerance=options.tolerance,
        turns=_amount(options.turns),
        tokenizer=options.tokenizer,
        sequence_length=_amount(options.sequence_length),
        cancel=options.cancel and _cancellation(options.cancel),
        expect=options.expect,
        seed=options.seed,
        string_length=options.string_length,
        route=_route(options.endpoint) if options.endpoint else None,
    )


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, colon, sizes = text.rpartition(":")
    parts = sizes.split(",")
    if not colon or not name or not all(part.strip().isdecimal() for part in parts):
        raise InvalidRequest(f"--shape '{text}' is not valid: expected NAME:1,3,224,224")
    return name, tuple(int(part) for part in parts)


def _value_range(text: str) -> tuple[str, tuple[float, float]]:
    name, _, limits = text.rpartition(":")
    try:
        low, high = map(float, limits.split(","))
    except ValueError:
        low, high = 1.0, 0.0
    if not name or low > high:
        raise InvalidRequest(f"--range '{text}' is not valid: expected NAME:LOW,HIGH, such as INPUT0:0,255")
    return name, (low, high)


def _amount(value: tuple[int, int] | None) -> Amount | None:
    return None if value is None else Amount(*value)


def _cancellation(text: str) -> Cancellation:
    """Parse SHARE, SHARE@TIME or SHARE@N."""
    share, _, after = text.partition("@")
    try:
        if not after:
            return Cancellation(fraction(share), after_ms=0)
        if after.isdecimal():
            return Cancellation(fraction(share), after_responses=int(after))
        after_s = parse_duration(after)
        if after_s < 0.001:
            raise ValueError(f"{after} is shorter than 1ms, the resolution of cancellations")
        return Cancellation(fraction(share), after_ms=round(after_s * 1000))
    except (ValueError, ArgumentTypeError) as error:
        raise InvalidRequest(f"--cancel '{text}' is not valid: expected 10%@50ms or 10%@5: {error}") from None


def _route(text: str) -> OpenAiRoute:
    """Parse a path such as v1/chat/completions, or its last words."""
    words = text.strip("/").removeprefix("v1/").removesuffix("/completions") or "completions"
    try:
        return OpenAiRoute(words)
    except ValueError:
        raise InvalidRequest(
            f"--endpoint '{text}' is not supported: expected v1/chat/completions, v1/completions or v1/embeddings"
        ) from None
