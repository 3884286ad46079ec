"""Flags of `conch autoscale`, apart from what they need: help and errors come at once."""

from argparse import ArgumentTypeError
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from math import isfinite
from pathlib import Path

from conch.base.command_line.flag_values import BOOLEAN, value_kind
from conch.base.command_line.flags import flag_field
from conch.base.command_line.option_types import amount, count, duration, fraction, slo

DEFAULT_POLICIES = ("ratio", "utilization", "utilization+ratio", "pending", "predict")


def _share(text: str) -> float:
    return 0.0 if text in {"0", "0%"} else fraction(text)


def _positive(text: str) -> float:
    if (value := _number(text)) > 0:
        return value
    raise ArgumentTypeError(f"'{text}' is not a number above 0")


def _not_negative(text: str) -> float:
    if (value := _number(text)) >= 0:
        return value
    raise ArgumentTypeError(f"'{text}' is not a number of at least 0")


def _number(text: str) -> float:
    """Return a finite number, or -1."""
    try:
        value = float(text)
    except ValueError:
        return -1.0
    return value if isfinite(value) else -1.0


def _tokens(text: str) -> tuple[int, int]:
    prompt, slash, output = text.partition("/")
    if not slash:
        raise ArgumentTypeError(f"'{text}' is not PROMPT/OUTPUT in tokens, such as 500/200")
    return amount(prompt)[0], amount(output)[0]


GROUPS = _POLICIES, _LOAD, _ENVIRONMENT, _RESULT = "policies", "load", "environment", "result"
_TIME = value_kind("TIME", duration)
_COUNT = value_kind("N", count)
_FILE = value_kind("FILE", Path)
_RATE = value_kind("N", _positive)
_URL = value_kind("URL")


@dataclass(frozen=True, slots=True)
class SimulationSettings:
    """The flags of `conch autoscale simulate`. Durations are in seconds."""

    traffic: str = flag_field(MISSING, _LOAD, "such as diurnal:200:1000; see below", value_kind("LOAD"))
    hpa: tuple[Path, ...] = flag_field((), _POLICIES, "HorizontalPodAutoscaler", _FILE, repeatable=True)
    scaled_object: tuple[Path, ...] = flag_field((), _POLICIES, "of KEDA", _FILE, repeatable=True)
    policy: tuple[str, ...] = flag_field(
        (),
        _POLICIES,
        f"built-in policy, repeatable (default: {', '.join(DEFAULT_POLICIES)})",
        value_kind("NAME[:TARGET]"),
        repeatable=True,
    )
    min_replicas: int = flag_field(1, _POLICIES, "of built-in policies (default: 1)", _COUNT)
    max_replicas: int | None = flag_field(None, _POLICIES, "default: three times what the peak needs", _COUNT)
    duration: float = flag_field(86400.0, _LOAD, "of synthetic loads (24h)", _TIME)
    scale: float = flag_field(1.0, _LOAD, "of the rates (default: 1)", value_kind("FACTOR", _positive))
    noise: float = flag_field(0.05, _LOAD, "of synthetic loads (default: 5%%)", value_kind("PERCENT", _share))
    seed: int = flag_field(0, _LOAD, "of the noise (default: 0)", value_kind("N", int))
    service_time: str | None = flag_field(
        None, _LOAD, "of one request, or a report of conch bench as JSON", value_kind("TIME|FILE")
    )
    variation: float = flag_field(
        0.5, _LOAD, "standard deviation / mean of times (0.5)", value_kind("VARIATION", _not_negative)
    )
    instances: int | None = flag_field(None, _LOAD, "of a replica (default: 1, or as the report shows)", _COUNT)
    batch: str = flag_field("1", _LOAD, "largest batch; COST of one more request, 0 to 1", value_kind("SIZE[:COST]"))
    llm: tuple[int, int] | None = flag_field(
        None, _LOAD, "tokens of a request to a language model", value_kind("PROMPT/OUTPUT", _tokens)
    )
    prefill_rate: float = flag_field(5000.0, _LOAD, "tokens/s (default: 5000)", _RATE)
    decode_rate: float = flag_field(40.0, _LOAD, "tokens/s of a sequence (default: 40)", _RATE)
    slots: int = flag_field(32, _LOAD, "sequences at a time (default: 32)", _COUNT)
    kv_tokens: float = flag_field(0.0, _LOAD, "of the KV cache (default: full slots)", value_kind("N", float))
    slo: Mapping[str, float] = flag_field(
        {"latency": 0.2}, _ENVIRONMENT, "latency:200ms or ttft:1s", value_kind("TARGET", slo)
    )
    objective: float = flag_field(0.99, _ENVIRONMENT, "that meets it (99%%)", value_kind("SHARE", fraction))
    cold_start: float = flag_field(40.0, _ENVIRONMENT, "until ready (default: 40s)", _TIME)
    image_pull: float = flag_field(0.0, _ENVIRONMENT, "before that (default: 0s)", _TIME)
    initial_replicas: int | None = flag_field(None, _ENVIRONMENT, "default: as the first load needs", _COUNT)
    max_queue: int | None = flag_field(None, _ENVIRONMENT, "waiting requests of a replica; more are rejected", _COUNT)
    scrape_interval: float = flag_field(15.0, _ENVIRONMENT, "default: 15s", _TIME)
    rule_interval: float = flag_field(15.0, _ENVIRONMENT, "default: 15s", _TIME)
    adapter_lag: float = flag_field(0.0, _ENVIRONMENT, "default: 0s", _TIME)
    sync_period: float = flag_field(15.0, _ENVIRONMENT, "of the HPA (15s)", _TIME)
    fault: tuple[str, ...] = flag_field(
        (), _ENVIRONMENT, "such as kill:3h:2; see below", value_kind("FAULT"), repeatable=True
    )
    name: str = flag_field(
        "conch", _RESULT, "of the Deployment that built-in policies scale (default: conch)", value_kind("NAME")
    )
    namespace: str = flag_field("default", _RESULT, "default: default", value_kind("NAMESPACE"), aliases=("n",))
    output: Path | None = flag_field(
        None, _RESULT, "write the winner's YAML, instead of printing it", _FILE, aliases=("o",)
    )
    json: Path | None = flag_field(None, _RESULT, "write all results", _FILE)
    html: Path | None = flag_field(None, _RESULT, "write plots as one page", _FILE)


@dataclass(frozen=True, slots=True)
class DoctorSettings:
    """The flags of `conch autoscale doctor`."""

    files: tuple[str, ...]
    api: str | None = flag_field(None, "", "API server without a login: what kubectl proxy prints", _URL)
    prometheus: str | None = flag_field(None, "", "Prometheus, such as http://127.0.0.1:9090", _URL)
    namespace: str = flag_field(
        "default", "", "of the autoscaler (default: default)", value_kind("NAMESPACE"), aliases=("n",)
    )
    name: str = flag_field("", "", "of the autoscaler (default: each)", value_kind("NAME"))
    json: bool = flag_field(False, "", "print JSON", BOOLEAN, bare=True)
