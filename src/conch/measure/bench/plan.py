"""What a run of `conch bench` measures: its flags, and the window of each level. Nothing here imports numpy."""

import re
import threading
from argparse import ArgumentTypeError
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from conch.base.command_line.flag_values import one_of, value_kind
from conch.base.command_line.flags import flag_field, settings_field
from conch.base.command_line.option_types import (
    concurrencies,
    count,
    duration,
    fraction,
    natural,
    percentile,
    rate_list,
    slo,
    warm_up,
)
from conch.base.command_line.wait_for_model import DEFAULT_WAIT_S, WAIT_HELP
from conch.base.durations import duration_text
from conch.base.errors import InvalidRequest
from conch.base.http.credentials import client_key
from conch.measure.bench.generator import Tls
from conch.measure.bench.input_settings import REQUESTS, InputSettings
from conch.measure.bench.measurement import BATCH_SIZE, PERCENTILES
from conch.measure.bench.targets.target import is_address

_DEFAULT_DURATION_S = 10.0
MAX_WARM_UP_S = 10.0
_DEFAULT_ROUNDS = 6
_PRECISION = re.compile(r"\s*p(\d+(?:\.\d+)?)\s*(?:±|\+-|\+/-)\s*(\d+(?:\.\d+)?)\s*%\s*")

# Groups of flags.
_TARGET, _LOAD, _WINDOW = "what is measured", "load", "how long"
_ACCESS, _OBSERVED, _OUTPUT, _CLIENT = "access", "observed beside the load", "output", "client"
GROUPS = {
    _TARGET: "",
    _LOAD: "",
    _WINDOW: "of each level; a time is 500us, 30s, 3m",
    REQUESTS: "by default they are random values of the model's metadata",
    _ACCESS: "",
    _OBSERVED: "",
    _OUTPUT: "",
    _CLIENT: "",
}

_BARE = value_kind("")
_COUNT, _NAME = value_kind("N", count), value_kind("NAME")
_FILE, _TIME, _URL = value_kind("FILE"), value_kind("TIME", duration), value_kind("URL")
_PERCENTILE, _SLO = value_kind("P", percentile), value_kind("LIST", slo)


@dataclass(frozen=True, slots=True)
class Precision:
    """Measure until the confidence interval of a percentile of latency is narrow."""

    percentile: float  # 99 for p99
    half_width_ratio: float  # 0.05 for ±5 %


def precision(text: str) -> Precision:
    """Parse 'p99 ±5%'."""
    rule = _PRECISION.fullmatch(text)
    if rule and 0 < float(rule[1]) < 100 and 0 < float(rule[2]) < 100:
        return Precision(float(rule[1]), float(rule[2]) / 100)
    raise ArgumentTypeError(f"'{text}' is not a rule: expected a percentile and a width, such as 'p99 ±5%'")


@dataclass(frozen=True, slots=True)
class MeasuringWindow:
    """What one level is measured for. The first of `duration_s`, `requests` and `precision` that is met ends it.

    `max_duration_s` bounds windows by `requests` and `precision`.
    """

    duration_s: float | None = 10.0
    requests: int | None = None
    precision: Precision | None = None
    max_duration_s: float = 120.0
    warm_up_s: float | None = None
    """Fixed warm-up; None: until throughput and latency are steady, at most `MAX_WARM_UP_S`."""
    is_load_steady: bool = True
    """False for ramps, bursts and traces, whose throughput changes by design; `warm_up_s` is fixed then."""
    grace_s: float = 5.0
    """How long to wait at the end for answers to requests in flight."""

    @property
    def max_window_s(self) -> float:
        """The longest time that the window can take."""
        if self.requests is None and self.precision is None:
            return self.duration_s or 0.0
        return min(self.duration_s or self.max_duration_s, self.max_duration_s)

    @property
    def limit_s(self) -> float:
        """The longest time that warm-up and window together can take."""
        return self.max_window_s + (MAX_WARM_UP_S if self.warm_up_s is None else self.warm_up_s)


class Interruption:
    """A request to stop early and report what was measured, set by a signal's handler or another thread."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def request(self) -> None:
        """Request the end."""
        self._event.set()

    @property
    def requested(self) -> bool:
        """Whether the end was asked for."""
        return self._event.is_set()


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """The flags of `conch bench`. What may be measured only of a server is checked once it has answered."""

    # fmt: off
    words: tuple[str, ...] = ()  # without a flag: the server and the model, in any order
    model: str | None = flag_field(
        None, _TARGET, "model (default: the only one that is ready)", _NAME, aliases=("m",))
    model_version: str = flag_field(
        "", _TARGET, "version (default: the server's choice)", value_kind("N"))
    protocol: str | None = flag_field(
        None, _TARGET, "protocol (default: of the port, or what suits the model)",
        one_of("http", "grpc", "grpc-stream", "openai", "generate"))
    against: str | None = flag_field(
        None, _TARGET, "a second server: measure both in turn (A/B); it is A, the baseline", _URL)
    rounds: int | None = flag_field(
        None, _TARGET, "pairs of windows of an A/B run (default: 6)", _COUNT)

    concurrency: tuple[int, ...] | None = flag_field(
        None, _LOAD, "users: 1,5,30 or 1:32:x2 or 1:10:1 (default: 1,5,30)", value_kind("LIST", concurrencies))
    rate: str | None = flag_field(
        None, _LOAD, "open loop, requests per second: 100,200", value_kind("LIST", rate_list))
    steps: int | None = flag_field(
        None, _LOAD, "N levels of --concurrency or --rate FROM:TO, at equal ratios", _COUNT)
    arrivals: str | None = flag_field(
        None, _LOAD, "constant, poisson or gamma:CV, for --rate (default: poisson)", value_kind("FORM"))
    ramp: str | None = flag_field(
        None, _LOAD, "open loop whose rate grows: 10:200:30s", value_kind("FROM:TO:TIME"))
    burst: str | None = flag_field(
        None, _LOAD, "open loop with square bursts: 50:500:2s/10s", value_kind("BASE:BURST:ON/PERIOD"))
    trace: str | None = flag_field(
        None, _LOAD, "replay: times, Mooncake, BurstGPT, or Conch's request log", _FILE)
    trace_speed: float = flag_field(
        1.0, _LOAD, "replay X times as fast (default: 1)", value_kind("X", float))
    think_s: float = flag_field(0.0, _LOAD, "pause of a user (0s)", _TIME, name="think-time")
    slo: Mapping[str, float] = flag_field(
        {}, _LOAD, "targets for goodput: ttft:200ms,itl:30ms,latency:1s", _SLO)
    slo_share: float = flag_field(
        0.99, _LOAD, "share that must meet --slo (default: 99%%)", value_kind("SHARE", fraction))
    find_max: bool = flag_field(
        False, _LOAD, "find the highest concurrency or rate that meets --slo", _BARE, bare=True)

    duration_s: float | None = flag_field(
        None, _WINDOW, "window (default: 10s, or that of --ramp)", _TIME, name="duration")
    requests: int | None = flag_field(None, _WINDOW, "window of N requests", _COUNT)
    until: Precision | None = flag_field(
        None, _WINDOW, "window until an interval is narrow: 'p99 ±5%%'", value_kind("RULE", precision))
    max_duration_s: float = flag_field(
        120.0, _WINDOW, "bound of --requests and --until (default: 2m)", _TIME, name="max-duration")
    warm_up_s: float | None = flag_field(
        None, _WINDOW, "before the window (default: auto, until it is steady)", value_kind("auto|TIME", warm_up),
        name="warm-up")
    repeat: int = flag_field(1, _WINDOW, "measure all levels N times (default: 1)", _COUNT)
    timeout_s: float = flag_field(60.0, _WINDOW, "of a request (60s)", _TIME, name="timeout")
    wait_s: float = flag_field(DEFAULT_WAIT_S, _WINDOW, WAIT_HELP, _TIME, name="wait")
    grace_s: float = flag_field(
        5.0, _WINDOW, "wait for answers at the end (default: 5s)", _TIME, name="grace")

    inputs: InputSettings = settings_field(InputSettings)
    shared_memory: str = flag_field(
        "none", REQUESTS, "send tensors in shared memory", one_of("none", "system", "cuda"))
    output_shared_memory_size: int | None = flag_field(
        None, REQUESTS, "region of each output (default: fits)", value_kind("BYTES", count))

    api_key_file: str | None = flag_field(
        None, _ACCESS, "file with the API key, sent as a bearer token", _FILE)
    header: tuple[str, ...] = flag_field(
        (), _ACCESS, "header; repeatable", value_kind("NAME: VALUE"), repeatable=True, aliases=("H",))
    ca_file: str | None = flag_field(None, _ACCESS, "certificates to verify the server with", _FILE)
    cert_file: str | None = flag_field(None, _ACCESS, "client certificate", _FILE)
    key_file: str | None = flag_field(None, _ACCESS, "key of the client certificate", _FILE)
    insecure: bool = flag_field(False, _ACCESS, "do not verify the server's certificate", _BARE, bare=True)

    metrics_url: str | None = flag_field(
        None, _OBSERVED, "metrics of the server (default: port 8002 or /metrics; none: do not look)", _URL)
    gpu_metrics_url: str | None = flag_field(
        None, _OBSERVED, "metrics of conch gpu-exporter or dcgm-exporter", _URL)

    json: str | None = flag_field(None, _OUTPUT, "write the certificate as JSON", _FILE)
    html: str | None = flag_field(None, _OUTPUT, "write it as a page with plots", _FILE)
    csv: str | None = flag_field(None, _OUTPUT, "write a table in the form of perf_analyzer's -f", _FILE)
    long_csv: str | None = flag_field(None, _OUTPUT, "write one line for each value, with its interval", _FILE)
    records: str | None = flag_field(None, _OUTPUT, "write a line of JSON for each request", _FILE)
    markdown: str | None = flag_field(None, _OUTPUT, "write a summary for pull requests", _FILE)
    percentile: tuple[float, ...] = flag_field(
        (), _OUTPUT, "also this percentile; repeatable", _PERCENTILE, repeatable=True)
    quiet: bool = flag_field(False, _OUTPUT, "print nothing but the result", _BARE, bare=True, aliases=("q",))
    plain: bool = flag_field(False, _OUTPUT, "print lines instead of the live view", _BARE, bare=True)

    seed: int = flag_field(0, _CLIENT, "of inputs and arrivals (default: 0)", value_kind("N", natural))
    processes: int | None = flag_field(None, _CLIENT, "of the generator (default: as needed)", _COUNT)
    connections: int | None = flag_field(None, _CLIENT, "to the server (default: one per user)", _COUNT)

    command: tuple[str, ...] = field(default=(), repr=False)  # the command line; it may have secrets
    # fmt: on

    @property
    def pairs(self) -> int:
        """How often both servers of an A/B run are measured."""
        return self.rounds or _DEFAULT_ROUNDS

    def url_and_model(self) -> tuple[str | None, str | None]:
        """Return both from the words in any order and --model. Raises InvalidRequest for two of a kind."""
        urls = [word for word in self.words if is_address(word)]
        models = [word for word in self.words if not is_address(word)]
        if self.model is not None:
            models.append(self.model)
        if len(urls) > 1 or len(set(models)) > 1:
            extra = urls if len(urls) > 1 else models
            raise InvalidRequest(
                f"expected one URL and one model, got {' and '.join(repr(word) for word in extra)}; "
                "--against names a second server"
            )
        return (urls[0] if urls else None), (models[0] if models else None)

    def window(self) -> MeasuringWindow:
        """Return the window of each level; without a bound it is 10 s, or as long as the load changes."""
        bounded = self.requests is not None or self.until is not None
        return MeasuringWindow(
            duration_s=self.duration_s or (None if bounded else self._default_duration_s()),
            requests=self.requests,
            precision=self.until,
            max_duration_s=max(self.max_duration_s, self.duration_s or 0.0),
            warm_up_s=self.warm_up_s,
            grace_s=self.grace_s,
        )

    def _default_duration_s(self) -> float:
        """Return the time of a ramp; of bursts at least one period."""
        if self.ramp is None and self.burst is None:
            return _DEFAULT_DURATION_S
        from conch.domain.arrivals import parse_burst, parse_ramp  # numpy, after the server was asked

        try:
            if self.ramp is not None and self.ramp.count(":") == 2:
                return parse_ramp(self.ramp).segments[0].duration_s
            if self.burst is not None:
                period = sum(segment.duration_s for segment in parse_burst(self.burst).segments)
                return max(_DEFAULT_DURATION_S, period)
        except ValueError:
            return _DEFAULT_DURATION_S  # the message follows where the levels are made
        return _DEFAULT_DURATION_S

    def headers(self) -> list[tuple[str, str]]:
        """Return the headers of all requests, with the API key. Raises InvalidRequest."""
        headers = []
        for text in self.header:
            name, colon, value = text.partition(":")
            if not colon or not name.strip():
                raise InvalidRequest(f"--header '{text}' is not valid: expected 'NAME: VALUE'")
            headers.append((name.strip().lower(), value.strip()))
        if key := client_key(self.api_key_file):
            headers.append(("authorization", f"Bearer {key}"))
        return headers

    def tls(self) -> Tls | None:
        """Return how to verify the server, None without a flag for it. Raises InvalidRequest for missing files."""
        files = {"--ca-file": self.ca_file, "--cert-file": self.cert_file, "--key-file": self.key_file}
        for flag, path in files.items():
            if path is not None and not Path(path).is_file():
                raise InvalidRequest(f"{flag}: file '{path}' does not exist")
        if not (any(files.values()) or self.insecure):
            return None
        return Tls(self.ca_file, self.cert_file, self.key_file, verify=not self.insecure)

    def described(self, inputs: str) -> dict[str, str | int | float | bool | None]:
        """Return what the report says of the settings; `inputs` describes what was sent."""
        window = self.window()
        until = window.precision
        slo = ", ".join(f"{name} {duration_text(seconds)}" for name, seconds in self.slo.items())
        values: dict[str, str | int | float | bool | None] = {
            "inputs": inputs,
            PERCENTILES: ", ".join(f"{value:g}" for value in sorted(set(self.percentile))) or None,
            BATCH_SIZE: self.inputs.batch_size if self.inputs.batch_size > 1 else None,
            "warm-up": "auto" if window.warm_up_s is None else duration_text(window.warm_up_s),
            "window": None if window.duration_s is None else duration_text(window.duration_s),
            "requests": window.requests,
            "until": None if until is None else f"p{until.percentile:g} ±{until.half_width_ratio:.3g}",
            "request timeout": duration_text(self.timeout_s),
            "SLO": slo or None,
            "repetitions": self.repeat if self.repeat > 1 else None,
            "rounds": self.pairs if self.against else None,
            "seed": self.seed,
        }
        return {name: value for name, value in values.items() if value is not None}
