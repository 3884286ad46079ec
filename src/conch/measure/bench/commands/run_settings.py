"""What the flags of `conch bench` ask for, as settings of a run."""

from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from conch.base.api_key import client_key
from conch.base.command_line.wait_for_model import wait_for_model
from conch.base.durations import duration_text
from conch.base.errors import InvalidRequest
from conch.measure.bench.load_level import LoadLevel, Replay, curve, rates, users
from conch.measure.bench.load_plan import Tls
from conch.measure.bench.measurement import BATCH_SIZE, PERCENTILES
from conch.measure.bench.measuring_window import MeasuringWindow
from conch.measure.bench.targets.address import is_address
from conch.measure.bench.targets.discover import discover
from conch.measure.bench.targets.target import Protocol

if TYPE_CHECKING:  # what is not needed to ask the server is imported after that
    from conch.domain.load_traces.load_trace import LoadTrace
    from conch.measure.bench.run import FindMax, RunSettings, Side

_DEFAULT_CONCURRENCIES = (1, 5, 30)
_DEFAULT_DURATION_S = 10.0
_MAX_LEVELS = 1000
_MAX_RATE = 1_000_000.0


def run_settings(options: Namespace, command: Sequence[str]) -> "RunSettings":
    """Find the server, make its requests, and return the settings. Raises ConchError."""
    url, model = _url_and_model(options)
    window = _window(options)
    trace = _trace(options, model)
    levels, find_max = _levels(options, window, trace)
    side = _side(options, url, model, trace)
    against = None
    if options.against is not None:
        against = _side(options, options.against, side.target.model.name, trace)
    from conch.measure.bench.report.public_command import public_command
    from conch.measure.bench.run import DEFAULT_ROUNDS, RunSettings

    return RunSettings(
        side=side,
        levels=levels,
        window=window,
        slo=options.slo,
        slo_share=options.slo_share,
        find_max=find_max,
        against=against,
        rounds=options.rounds or DEFAULT_ROUNDS,
        repeat=options.repeat,
        timeout_s=options.timeout,
        connections=options.connections,
        processes=options.processes,
        seed=options.seed,
        percentiles=tuple(options.percentile),
        command=public_command(command),
        described=_described(options, window, side.inputs, options.rounds or DEFAULT_ROUNDS),
    )


def _described(
    options: Namespace, window: MeasuringWindow, inputs: str, rounds: int
) -> dict[str, str | int | float | bool | None]:
    """Return what the report says of the settings."""
    slo = ", ".join(f"{name} {duration_text(seconds)}" for name, seconds in options.slo.items())
    values: dict[str, str | int | float | bool | None] = {
        "inputs": inputs,
        PERCENTILES: ", ".join(f"{each:g}" for each in sorted(set(options.percentile))) or None,
        BATCH_SIZE: options.batch_size if options.batch_size > 1 else None,
        "warm-up": "auto" if window.warm_up_s is None else duration_text(window.warm_up_s),
        "window": None if window.duration_s is None else duration_text(window.duration_s),
        "requests": window.requests,
        "until": None
        if window.precision is None
        else f"p{window.precision.percentile:g} ±{window.precision.half_width_ratio:.3g}",
        "request timeout": duration_text(options.timeout),
        "SLO": slo or None,
        "repetitions": options.repeat if options.repeat > 1 else None,
        "rounds": rounds if options.against else None,
        "seed": options.seed,
    }
    return {name: value for name, value in values.items() if value is not None}


def _url_and_model(options: Namespace) -> tuple[str | None, str | None]:
    """Return both from the arguments in any order and --model."""
    urls = [word for word in options.target if is_address(word)]
    models = [word for word in options.target if not is_address(word)]
    if options.model is not None:
        models.append(options.model)
    if len(urls) > 1 or len(set(models)) > 1:
        extra = urls if len(urls) > 1 else models
        raise InvalidRequest(
            f"expected one URL and one model, got {' and '.join(repr(each) for each in extra)}; "
            "--against names a second server"
        )
    return (urls[0] if urls else None), (models[0] if models else None)


def _window(options: Namespace) -> MeasuringWindow:
    bounded = options.requests is not None or options.until is not None
    duration = options.duration or (None if bounded else _default_duration_s(options))
    return MeasuringWindow(
        duration_s=duration,
        requests=options.requests,
        precision=options.until,
        max_duration_s=max(options.max_duration, options.duration or 0.0),
        warm_up_s=options.warm_up,
        grace_s=options.grace,
    )


def _default_duration_s(options: Namespace) -> float:
    """Return the time of a ramp; of bursts at least one period."""
    if options.ramp is None and options.burst is None:
        return _DEFAULT_DURATION_S
    from conch.domain.arrivals.words import parse_burst, parse_ramp  # numpy, after the server was asked

    try:
        if options.ramp is not None and options.ramp.count(":") == 2:
            return parse_ramp(options.ramp).segments[0].duration_s
        if options.burst is not None:
            period = sum(each.duration_s for each in parse_burst(options.burst).segments)
            return max(_DEFAULT_DURATION_S, period)
    except ValueError:
        return _DEFAULT_DURATION_S  # the message follows where the levels are made
    return _DEFAULT_DURATION_S


def _trace(options: Namespace, model: str | None) -> "LoadTrace | None":
    """Read --trace, as fast and as long as asked. Raises ConchError."""
    if options.trace is None:
        return None
    from conch.domain.load_traces.read_trace import read_trace

    try:
        trace = read_trace(options.trace, model)
        trace = trace.faster(options.trace_speed)
        return trace if options.duration is None else trace.window(0.0, options.duration)
    except ValueError as error:
        raise InvalidRequest(f"--trace: {error}") from None


def _levels(
    options: Namespace, window: MeasuringWindow, trace: "LoadTrace | None"
) -> tuple[tuple[LoadLevel, ...], "FindMax | None"]:
    """Return the levels, or the search for one. Raises InvalidRequest for flags that exclude each other."""
    given = [name for name in ("concurrency", "rate", "ramp", "burst", "trace") if getattr(options, name) is not None]
    if len(given) > 1:
        raise InvalidRequest(f"--{given[0]} and --{given[1]} exclude each other: a run has one form of load")
    if options.arrivals is not None and not {"rate", "ramp", "burst"} & set(given):
        raise InvalidRequest("--arrivals needs --rate, --ramp or --burst")
    _check_combinations(options, given)
    try:
        if options.find_max:
            return (), _find_max(options)
        return _chosen_levels(options, window, trace), None
    except ValueError as error:
        raise InvalidRequest(str(error)) from None


def _check_combinations(options: Namespace, given: Sequence[str]) -> None:
    """Raise InvalidRequest for flags that would have no effect."""
    if options.rounds is not None and options.against is None:
        raise InvalidRequest("--rounds needs --against; --repeat measures all levels of one server again")
    if options.against is not None and options.repeat > 1:
        raise InvalidRequest("--repeat does not apply to --against; use --rounds")
    if options.find_max and (options.against is not None or options.repeat > 1):
        raise InvalidRequest("--find-max searches once, on one server: it excludes --against and --repeat")
    if options.steps is not None and (options.find_max or not {"concurrency", "rate"} & set(given)):
        raise InvalidRequest("--steps needs a range, --concurrency 1:64 or --rate 100:1600, and excludes --find-max")


def _spread(values: Sequence[float], steps: int) -> list[float]:
    """Return `steps` levels from the lowest to the highest value, each by the same factor above the one before."""
    low, high = min(values), max(values)
    return [low * (high / low) ** (step / max(steps - 1, 1)) for step in range(steps)]


def _bounded(levels: Sequence[float]) -> None:
    """Raise InvalidRequest for more levels than anyone waits for, most often a range without a step."""
    if len(levels) > _MAX_LEVELS:
        raise InvalidRequest(
            f"{len(levels):,} levels are more than {_MAX_LEVELS:,}: write a step, such as 1:4096:x2, or use --steps"
        )


def _chosen_levels(options: Namespace, window: MeasuringWindow, trace: "LoadTrace | None") -> tuple[LoadLevel, ...]:
    if trace is not None:
        speed = "" if options.trace_speed == 1 else f" ×{options.trace_speed:g}"
        return (Replay(trace.times_s, f"{trace.name}{speed}"),)
    if options.rate is None and options.ramp is None and options.burst is None:
        concurrencies = options.concurrency or _DEFAULT_CONCURRENCIES
        if options.steps is not None:
            concurrencies = list(dict.fromkeys(round(each) for each in _spread(concurrencies, options.steps)))
        _bounded(concurrencies)
        return users(concurrencies, options.think_time)
    from conch.domain.arrivals.words import parse_arrivals, parse_burst, parse_ramp, parse_rates

    process, cv = parse_arrivals(options.arrivals or "poisson")
    if options.rate is not None:
        values = parse_rates(options.rate)
        if options.steps is not None:
            values = tuple(float(f"{each:.4g}") for each in _spread(values, options.steps))
        _bounded(values)
        return rates(values, process, cv)
    if options.ramp is not None:
        return (curve(parse_ramp(options.ramp, window.duration_s), f"ramp {options.ramp}", process, cv),)
    return (curve(parse_burst(options.burst), f"burst {options.burst}", process, cv),)


def _find_max(options: Namespace) -> "FindMax":
    if not options.slo:
        raise InvalidRequest("--find-max needs a target: --slo latency:50ms, or ttft:200ms,itl:30ms")
    if options.ramp or options.burst or options.trace:
        raise InvalidRequest("--find-max searches over --concurrency or --rate, not over ramps, bursts or traces")
    from conch.domain.arrivals.words import parse_arrivals, parse_rates
    from conch.measure.bench.run import FindMax
    from conch.measure.bench.slo_search import SloSearch

    if options.rate is None:
        bounds = options.concurrency or (1, 4096)
        return FindMax(SloSearch(min(bounds), max(bounds)), partial(_user_level, think_s=options.think_time))
    process, cv = parse_arrivals(options.arrivals or "poisson")
    values = parse_rates(options.rate)
    highest = max(values) if len(values) > 1 else _MAX_RATE
    return FindMax(SloSearch(min(values), highest, integers=False), lambda value: rates([value], process, cv)[0])


def _user_level(value: float, think_s: float) -> LoadLevel:
    return users([int(value)], think_s)[0]


def _side(options: Namespace, url: str | None, model: str | None, trace: "LoadTrace | None") -> "Side":
    """Find a server and make its requests."""
    find = partial(
        discover,
        url,
        protocol=Protocol(options.protocol) if options.protocol else None,
        model=model,
        version=options.model_version,
        headers=_headers(options),
        tls=_tls(options),
        metrics=options.metrics_url is None,
    )
    target = wait_for_model(find, "conch bench", options.wait)
    from conch.measure.bench.commands.run_side import side_of

    return side_of(options, target, trace)


def _headers(options: Namespace) -> list[tuple[str, str]]:
    headers = []
    for text in options.header:
        name, colon, value = text.partition(":")
        if not colon or not name.strip():
            raise InvalidRequest(f"--header '{text}' is not valid: expected 'NAME: VALUE'")
        headers.append((name.strip().lower(), value.strip()))
    if key := client_key(options.api_key_file):
        headers.append(("authorization", f"Bearer {key}"))
    return headers


def _tls(options: Namespace) -> Tls | None:
    given = options.ca_file or options.cert_file or options.key_file or options.insecure
    if not given:
        return None
    for name in ("ca_file", "cert_file", "key_file"):
        path = getattr(options, name)
        if path is not None and not Path(path).is_file():
            raise InvalidRequest(f"--{name.replace('_', '-')}: there is no file '{path}'")
    return Tls(options.ca_file, options.cert_file, options.key_file, verify=not options.insecure)
