"""What a running server does, read from its metrics, its index of models and their configurations.

`conch top`, `conch ps` and `conch doctor` show it. A reading is one moment; rates come from two readings.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import Any
from urllib.parse import quote, urlsplit

from conch.base.errors import Unavailable
from conch.base.http.client import HttpClient, HttpSettings, RequestFailed
from conch.base.http.credentials import VARIABLES
from conch.base.http.prometheus import ScrapeSettings, scrape
from conch.base.process.running_servers import RunningServer, running_servers
from conch.measure.bench.observers.server_metrics import MetricSeries, parse_exposition

_TIMEOUT_S = 3.0
_METRICS_PORT, _METRICS_OFFSET = 8002, 2
_OK, _UNAUTHORIZED = 200, 401
_ON_CPU = "kind_gpu_on_cpu"


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a server answers: the URL of its API, that of its metrics ("" if it serves none), and a key to send.

    `certificate` is the PEM file of the certificate that it must show, "" for one that the system trusts. `readable`
    is False for a server that requires a certificate from clients.
    """

    url: str
    metrics: str = ""
    key: str = field(default="", repr=False)
    certificate: str = ""
    readable: bool = True

    @property
    def headers(self) -> dict[str, str]:
        """The headers of requests."""
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}


@dataclass(slots=True)
class ModelReading:
    """One model version at one moment. Counters count since the model was loaded; `buckets` are cumulative."""

    name: str
    version: str
    state: str = ""  # READY, LOADING, UNAVAILABLE
    reason: str = ""  # of the state
    backend: str = ""
    device: str = ""  # CPU, GPU 0, …
    context_length: int = 0  # tokens of prompt and completion, of a language model
    instances: int = 0
    queued: int = 0
    oldest_s: float = 0.0  # age of the oldest request in the queue
    memory_bytes: int = 0  # of its processes; 0 for a model inside the server's process
    requests: float = 0
    failures: float = 0
    executions: float = 0
    inferences: float = 0
    busy_s: float = 0.0  # summed over the instances
    tokens: float = 0
    buckets: dict[float, float] = field(default_factory=dict)  # upper bound in seconds → requests
    degraded: tuple[str, ...] = ()  # reasons
    asleep: bool = False  # an engine that was idle, until the next request
    idle_unload_s: int = 0  # of the model's own parameter; 0 for the server's default

    @property
    def key(self) -> tuple[str, str]:
        """Name and version."""
        return self.name, self.version


@dataclass(slots=True)
class ServerReading:
    """A server at one moment (`taken_s`, monotonic). `problems` says what could not be read."""

    url: str
    taken_s: float = 0.0
    models: list[ModelReading] = field(default_factory=list)
    degraded: tuple[str, ...] = ()  # reasons of the whole server
    memory_bytes: int = 0  # of the server's process
    cpu_s: float = 0.0
    connections: int = 0
    gpus: dict[str, float] = field(default_factory=dict)  # GPU → share in use, 0 to 1
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ModelRates:
    """What a model did between two readings, per second; latencies are upper bounds in seconds, None without data."""

    requests: float
    failures: float
    tokens: float
    batch: float  # mean inferences per execution
    busy: float  # mean of the busy instances, as a share
    median_s: float | None
    slow_s: float | None  # 99th percentile


def find_address(url: str | None, metrics: str | None, key: str = "") -> ServerAddress:
    """Return the address of a server: the given one, or the newest of this user on this machine, or port 8000."""
    servers = running_servers()
    if url is not None:
        url = url if "://" in url else f"http://{url}"
        netloc = urlsplit(url).netloc.replace("localhost", "127.0.0.1")
        servers = [server for server in servers if server.http_tls and server.http == netloc]
    if servers:
        return address_of(servers[-1], metrics, key)
    url = url or "http://127.0.0.1:8000"
    parts = urlsplit(url)
    port = _METRICS_PORT if parts.port in (None, 8000) else parts.port + _METRICS_OFFSET
    host = f"[{parts.hostname}]" if parts.hostname and ":" in parts.hostname else parts.hostname
    return ServerAddress(url.rstrip("/"), metrics or f"{parts.scheme}://{host}:{port}", key)


def find_addresses(url: str | None, metrics: str | None, key: str = "") -> list[ServerAddress]:
    """Return the address that is given, or those of all servers of this user, or port 8000."""
    if url is None and metrics is None and (servers := running_servers()):
        return [address_of(server, None, key) for server in servers]
    return [find_address(url, metrics, key)]


def address_of(server: RunningServer, metrics: str | None, key: str) -> ServerAddress:
    """Return the address of a server of this user on this machine."""
    return ServerAddress(
        server.url, metrics or server.metrics_url, key, server.certificate, not server.client_certificates
    )


class ServerReader:
    """Reads one server. The configurations of models are read once for each version."""

    def __init__(self, address: ServerAddress) -> None:
        self.address = address
        self._client = self._connected()
        self._configs: dict[tuple[str, str], Mapping[str, Any]] = {}

    def read(self) -> ServerReading:
        """Return what the server does now. Raises Unavailable if it does not answer."""
        if self.address.certificate:  # may have been replaced
            self._client = self._connected()
        reading = ServerReading(self.address.url)
        index = self.ask("POST", "/v2/repository/index", b"{}")
        models = {}
        for row in index if isinstance(index, list) else ():
            model = ModelReading(str(row.get("name", "")), str(row.get("version", "")))
            model.state, model.reason = str(row.get("state", "")), str(row.get("reason", ""))
            if model.state:
                models[model.key] = model
        if self.address.metrics:
            try:
                how = ScrapeSettings(
                    self.address.metrics, tuple(self.address.headers.items()), certificate=self.address.certificate
                )
                page = scrape(how)
                _apply(reading, models, parse_exposition(page))
            except OSError as error:
                reading.problems.append(f"metrics at {self.address.metrics}: {error}; --metrics-url names another")
        else:
            reading.problems.append("the server serves no metrics (--allow-metrics=false)")
        for model in models.values():
            if model.state == "READY":
                _describe(model, self.config(model.name, model.version))
        reading.models = list(models.values())
        reading.taken_s = monotonic()
        return reading

    def metadata(self) -> Mapping[str, Any]:
        """Return name, version and extensions. Raises Unavailable."""
        answer = self.ask("GET", "/v2")
        return answer if isinstance(answer, dict) else {}

    def _connected(self) -> HttpClient:
        certificate = self.address.certificate
        return HttpClient(HttpSettings.once(_TIMEOUT_S, environment_proxies=False, certificate=certificate))

    def config(self, name: str, version: str) -> Mapping[str, Any]:
        """Return the configuration of a loaded model version, {} if the server does not give it."""
        key = (name, version)
        if key not in self._configs:
            path = f"/v2/models/{quote(name, safe='')}/versions/{quote(version, safe='')}/config"
            try:
                answer = self.ask("GET", path)
            except Unavailable:
                answer = {}
            self._configs[key] = answer if isinstance(answer, dict) else {}
        return self._configs[key]

    def ask(self, method: str, path: str, body: bytes | None = None) -> Any:
        """Return the JSON value of an answer, None for an empty one. Raises Unavailable with the server's message."""
        url = f"{self.address.url}{path}"
        if not self.address.readable:
            raise Unavailable(
                f"{self.address.url} requires a certificate from clients (--http-use-ssl-mutual), which this command "
                "has not"
            )
        try:
            with self._client.open(method, url, self.address.headers, body) as response:
                if response.status != _OK:
                    hint = ""
                    if response.status == _UNAUTHORIZED and not self.address.key:
                        hint = f"; its clients need a key: set {VARIABLES[0]}"
                    with suppress(Unavailable, KeyError, TypeError):
                        hint = hint or f": {response.json()['error']}"
                    raise Unavailable(f"{self.address.url}: status {response.status} for {path}{hint}")
                return json.loads(response.read() or b"null")
        except (ValueError, RecursionError) as error:
            raise Unavailable(f"{self.address.url}: the answer for {path} is not JSON") from error
        except RequestFailed as error:
            raise Unavailable(f"no server answers at {self.address.url}: {error.cause}") from None


def rates(before: ServerReading | None, now: ServerReading) -> dict[tuple[str, str], ModelRates]:
    """Return what each model did between two readings; a model without an earlier reading has no rates."""
    if before is None or now.taken_s <= before.taken_s:
        return {}
    seconds = now.taken_s - before.taken_s
    earlier = {model.key: model for model in before.models}
    by_model = {}
    for model in now.models:
        old = earlier.get(model.key)
        if old is None or model.requests < old.requests:  # loaded again
            continue
        executions = model.executions - old.executions
        counts = {bound: count - old.buckets.get(bound, 0) for bound, count in model.buckets.items()}
        by_model[model.key] = ModelRates(
            requests=(model.requests - old.requests) / seconds,
            failures=(model.failures - old.failures) / seconds,
            tokens=(model.tokens - old.tokens) / seconds,
            batch=(model.inferences - old.inferences) / executions if executions else 0.0,
            busy=min((model.busy_s - old.busy_s) / seconds / max(model.instances, 1), 1.0),
            median_s=_quantile(counts, 0.5),
            slow_s=_quantile(counts, 0.99),
        )
    return by_model


def _quantile(buckets: Mapping[float, float], share: float) -> float | None:
    """Return the upper bound of the bucket with a quantile, None without requests."""
    total = max(buckets.values(), default=0)
    if not total:
        return None
    return next(bound for bound, count in sorted(buckets.items()) if count >= share * total)


# Metric → attribute of a model that is the sum of its series.
_SUMS = {
    "nv_inference_request_success": "requests",
    "nv_inference_request_failure": "failures",
    "nv_inference_exec_count": "executions",
    "nv_inference_count": "inferences",
    "conch_instances": "instances",
    "conch_instance_busy_seconds_total": "busy_s",
    "conch_queue_depth": "queued",
    "conch_queue_oldest_request_seconds": "oldest_s",
    "conch_process_resident_memory_bytes": "memory_bytes",
    "vllm:generation_tokens_total": "tokens",
}
_ENGINE = "conch_engine_info"
_SLEEP = "vllm:engine_sleep_state"
_BUCKETS = ("conch_request_duration_seconds_bucket", "vllm:e2e_request_latency_seconds_bucket")
# Metric → attribute of the server that is the sum of its series.
_OF_SERVER = {
    "process_resident_memory_bytes": "memory_bytes",
    "process_cpu_seconds_total": "cpu_s",
    "conch_connections": "connections",
}


def _apply(
    reading: ServerReading, models: Mapping[tuple[str, str], ModelReading], page: Iterable[MetricSeries]
) -> None:
    """Add the values of a page of metrics."""
    reasons: defaultdict[str, list[str]] = defaultdict(list)
    for series in page:
        labels, name = series.labels, series.name
        if name == "conch_degraded":
            reasons[labels.get("model", "")].append(labels.get("reason", ""))
        elif name == _ENGINE:
            if model := models.get((labels.get("model", ""), labels.get("version", ""))):
                model.device, length = labels.get("device", ""), labels.get("context_length", "")
                model.context_length = int(length) if length.isdecimal() else 0
        elif name in _OF_SERVER:
            attribute = _OF_SERVER[name]
            setattr(reading, attribute, getattr(reading, attribute) + type(getattr(reading, attribute))(series.value))
        elif name == "nv_gpu_utilization":
            reading.gpus[labels.get("gpu_uuid", "")] = series.value
        elif model := models.get((labels.get("model", labels.get("model_name", "")), labels.get("version", ""))):
            if name == _SLEEP:
                model.asleep |= labels.get("sleep_state") == "awake" and not series.value
            elif name in _BUCKETS:
                bound = float(labels.get("le", "inf"))
                model.buckets[bound] = model.buckets.get(bound, 0) + series.value
            elif attribute := _SUMS.get(name, ""):
                setattr(model, attribute, getattr(model, attribute) + type(getattr(model, attribute))(series.value))
    reading.degraded = tuple(reasons[""])
    for model in models.values():
        model.degraded = tuple(reasons[model.name])


def _describe(model: ModelReading, config: Mapping[str, Any]) -> None:
    """Add backend and device from the configuration, in which KIND_AUTO is already resolved.

    KIND_GPU that runs on the CPU is a degradation. Engines have reported their device.
    """
    model.backend = str(config.get("backend") or config.get("platform") or "")
    devices = [model.device]
    for group in () if model.device else config.get("instance_group") or ():
        kind = str(group.get("kind", "")).removeprefix("KIND_")
        if kind == "GPU":
            devices += [f"GPU {number}" for number in group.get("gpus") or ()]
        elif kind != "MODEL":  # the model's code chooses, and does not report what
            devices.append(kind)
    model.device = "CPU" if _ON_CPU in model.degraded else ", ".join(dict.fromkeys(filter(None, devices)))
    own = config.get("parameters", {}).get("idle_unload_secs", {}).get("string_value", "")
    model.idle_unload_s = int(own) if own.isdecimal() else 0


def document(reading: ServerReading, before: ServerReading | None = None) -> dict[str, Any]:
    """Return a reading, with the rates since an earlier one, as JSON values."""
    changes = rates(before, reading)
    models = []
    for model in reading.models:
        row = {name: getattr(model, name) for name in model.__slots__ if name != "buckets"}
        if change := changes.get(model.key):
            values = {name: getattr(change, name) for name in change.__slots__}
            row["rates"] = {name: None if value == inf else value for name, value in values.items()}
        models.append(row)
    shown = {name: getattr(reading, name) for name in reading.__slots__ if name not in ("models", "taken_s")}
    return {**shown, "models": models}


def all_reasons(reading: ServerReading) -> Iterable[tuple[str, str]]:
    """Yield (model, reason) of all degradations, model "" for the server."""
    yield from (("", reason) for reason in reading.degraded)
    yield from dict.fromkeys((model.name, reason) for model in reading.models for reason in model.degraded)
