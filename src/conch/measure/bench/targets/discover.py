"""Find out what answers at a URL: its APIs, its models, its metrics. No state of the server is changed."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from urllib.parse import urlsplit

from conch.base.errors import ModelLoading
from conch.base.suggestion import did_you_mean
from conch.measure.bench.generator import Endpoint, Tls, Transport
from conch.measure.bench.targets.http_probe import HttpAnswer, HttpProbe, NotHttp, first_line, speaks_tls
from conch.measure.bench.targets.server_api import (
    KeyNeeded,
    KServeHttp,
    ListedModel,
    OpenAiApi,
    ServerApi,
    server_name,
)
from conch.measure.bench.targets.target import (
    LOCAL_GRPC,
    LOCAL_HTTP,
    Address,
    BenchTarget,
    ModelKind,
    NotHttp2,
    Protocol,
    TargetError,
    TargetModel,
    parse_address,
)

_MAX_LISTED = 20
_METRICS = re.compile(rb"^# (?:HELP|TYPE) ", re.MULTILINE)
_TITLE = re.compile(rb"<title[^>]*>\s*([^<]+?)\s*</title>", re.IGNORECASE)
_BANNERS = (
    (b"SSH-", "an SSH server"),
    (b"-ERR", "Redis"),
    (b"220 ", "a mail or FTP server"),
    (b"\x15\x03", "a TLS server"),
)
_TIMEOUT_S = 2.0
_OF_INFERENCE = re.compile(rb"^(?:nv_inference|nv_|conch_|vllm:|ovms_)", re.MULTILINE)
# HTTP and gRPC ports, and where Triton and Conch have their metrics by default.
_USUAL = {8000: 8002, 8001: 8002}
_GRPC = (Protocol.GRPC, Protocol.GRPC_STREAM)
_API_PATHS = ("/v1", "/v2", "/v3")


def only_model(where: str, models: Sequence[ListedModel] | None) -> str:
    """Return the name of the only ready model. Raises TargetError, which lists the models, and ModelLoading."""
    if models is None:
        raise TargetError(f"{where} does not list its models; name one with --model")
    ready = sorted({model.name for model in models if model.ready})
    if len(ready) == 1:
        return ready[0]
    if ready:
        raise TargetError(f"{where} has {len(ready)} models; choose one with --model: {_joined(ready)}")
    _check_loading(models)
    if models:
        raise TargetError(f"{where} has no ready model: {_joined([f'{row.name} ({row.reason})' for row in models])}")
    raise TargetError(f"{where} has no models")


def unknown_model(where: str, name: str, version: str, models: Sequence[ListedModel] | None) -> TargetError:
    """Return the error for a model without metadata: it is not ready, or the server does not have it.

    Raises ModelLoading for one that is being loaded.
    """
    rows = list(models or ())
    of_name = [row for row in rows if row.name == name]
    if of_name and not any(row.ready for row in of_name):
        _check_loading(of_name)
        row = of_name[-1]
        if row.reason == "not loaded":
            return TargetError(
                f"model '{name}' is in the repository of {where} but not loaded; restart the server, or, in model "
                f"control mode explicit, load it: POST /v2/repository/models/{name}/load"
            )
        return TargetError(f"model '{name}' of {where} is not ready: {row.reason}")
    ready = sorted({row.name for row in rows if row.ready})
    if of_name and version:
        versions = _joined(sorted({row.version for row in of_name if row.version}))
        return TargetError(f"model '{name}' of {where} has no version {version}; it has {versions}")
    listed = f" Ready models: {_joined(ready)}" if ready else ""
    return TargetError(f"{where} has no model '{name}'{did_you_mean(name, ready, '.') if listed else ''}{listed}")


def _check_loading(rows: Sequence[ListedModel]) -> None:
    """Raise ModelLoading if one of these models is being loaded."""
    for row in rows:
        if row.loading:
            raise ModelLoading(f"model '{row.name}' is loading")


def _joined(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MAX_LISTED])
    return shown if len(names) <= _MAX_LISTED else f"{shown} and {len(names) - _MAX_LISTED} others"


def not_an_inference_server(probe: HttpProbe, first: HttpAnswer) -> TargetError:
    """Return the error for a server of HTTP that has none of the APIs; `first` is its answer to `/v2`."""
    where = probe.endpoint.place
    if tls_expected(first):
        return expects_tls(where)
    software = first.headers.get("server")
    said = f"{first.path} answers {first.status} {first.reason}".rstrip()
    said += f", Server: {software}" if software else ""
    line = first_line(first.body)
    said += f", {line!r}" if line else ", without a body"
    return TargetError(f"{where} is not an inference server: {said}{_looks_like(probe, first)}")


def tls_expected(answer: HttpAnswer) -> bool:
    """Whether an answer says that plain HTTP was sent to a port of HTTPS, as nginx, Go, and Apache do."""
    text = answer.body[:2000].lower()
    return answer.status == 400 and (
        b"http request was sent to https port" in text or b"http request to an https server" in text
    )


def expects_tls(where: str) -> TargetError:
    """Return the error for plain HTTP to a port of TLS."""
    return TargetError(f"{where} expects TLS; use https:// (or grpcs://)")


def not_http(probe: HttpProbe, failure: NotHttp) -> TargetError:
    """Return the error for a server that speaks neither HTTP nor gRPC."""
    where = probe.endpoint.place
    if failure.start.startswith(b"\x15\x03") or (probe.endpoint.tls is None and speaks_tls(probe.endpoint)):
        return expects_tls(where)
    for banner, name in _BANNERS:
        if failure.start.startswith(banner):
            return TargetError(f"{where} is not an inference server: it looks like {name}")
    return TargetError(f"{where} is not an inference server: {failure.message}")


def _looks_like(probe: HttpProbe, first: HttpAnswer) -> str:
    """Return what the server seems to be, as the end of a sentence, "" if that is unknown."""
    try:
        root = probe.get("/")
        metrics = probe.get("/metrics")
    except TargetError:
        return ""
    home = root.headers.get("location") or ""
    software = (first.headers.get("server") or "").lower()
    if urlsplit(home).path in ("/graph", "/query") or b"Prometheus Time Series" in root.body:
        return "; this looks like Prometheus"
    if b"Grafana" in root.body:
        return "; this looks like Grafana"
    if metrics.status == 200 and _METRICS.search(metrics.body[:65_536]):
        hint = "; the HTTP port of Triton and Conch is usually 8000"
        return f"; this looks like a metrics port: /metrics has Prometheus metrics{hint}"
    for name in ("nginx", "apache", "envoy", "traefik", "caddy", "haproxy"):
        if name in software:
            return f"; this looks like {name}: is the path of the API missing from the URL?"
    for answer in (first, root):
        if "html" in (answer.headers.get("content-type") or "") or answer.body.lstrip()[:1] == b"<":
            title = _TITLE.search(answer.body)
            named = f" with the title {first_line(title[1], 60)!r}" if title else ""
            return f"; {answer.path} is an HTML page{named}"
    return ""


def find_metrics(endpoint: Endpoint, root: str) -> str | None:
    """Return the URL of the metrics: on the same port, or where they are with Triton's default ports; None otherwise.

    Only metrics of an inference server count. Keys go to the same port only.
    """
    candidates = [] if endpoint.transport is Transport.GRPC else [(endpoint, root)]
    other = _USUAL.get(endpoint.port, endpoint.port + (1 if endpoint.transport is Transport.GRPC else 2))
    if other < 65_536:
        candidates.append((Endpoint(endpoint.host, other, Transport.HTTP1), ""))
    for candidate, path in candidates:
        try:
            answer = HttpProbe(candidate, _TIMEOUT_S).get(f"{path}/metrics")
        except TargetError:
            continue
        if answer.status == 200 and _OF_INFERENCE.search(answer.body):
            return f"{'https' if candidate.tls else 'http'}://{candidate.place}{path}/metrics"
    return None


def discover(
    url: str | None = None,
    *,
    protocol: Protocol | None = None,
    model: str | None = None,
    version: str = "",
    headers: Sequence[tuple[str, str]] = (),
    tls: Tls | None = None,
    metrics: bool = True,
) -> BenchTarget:
    """Return what answers at `url`, and the model to measure: the only one, or `model`.

    Without a URL, Triton's default ports of this machine are tried. Without a protocol, a language model is measured
    with the OpenAI API where the server has it, other models with KServe v2. With `metrics`, the server's metrics are
    looked for. Raises TargetError, whose message says what answered instead.
    """
    named = tuple((name.lower(), value) for name, value in headers)
    if url is not None:
        return _Discovery(parse_address(url), protocol, named, tls, metrics=metrics).run(model, version)
    places = [LOCAL_GRPC] if protocol in _GRPC else [LOCAL_HTTP, LOCAL_GRPC] if protocol is None else [LOCAL_HTTP]
    for url in places:
        discovery = _Discovery(parse_address(url), protocol, named, tls, metrics=metrics)
        try:
            return discovery.run(model, version)
        except TargetError as error:
            if "nothing listens" not in error.message:
                raise
    raise TargetError(f"no server listens at {' or '.join(places)}; start one, or give a URL before the model")


class _Discovery:
    """The conversation with one server."""

    def __init__(
        self,
        address: Address,
        protocol: Protocol | None,
        headers: tuple[tuple[str, str], ...],
        tls: Tls | None,
        *,
        metrics: bool,
    ) -> None:
        self._address = address
        self._protocol = protocol
        self._headers = headers
        self._tls = tls
        self._metrics = metrics
        self._root = address.path.removesuffix(next((p for p in _API_PATHS if address.path.endswith(p)), ""))
        self._key_needed: KeyNeeded | None = None
        self._notes: list[str] = []

    def run(self, model: str | None, version: str) -> BenchTarget:
        """Return the target. Raises TargetError."""
        if self._address.wire == "grpc" or (self._address.wire is None and self._protocol in _GRPC):
            return self._grpc(model, version)
        endpoint = self._endpoint(Transport.HTTP1)
        probe = HttpProbe(endpoint)
        try:
            return self._http(endpoint, probe, model, version)
        except NotHttp as failure:
            if self._grpc_answers():
                if self._protocol is not None and self._protocol not in _GRPC:
                    raise self._wrong_port("speaks gRPC", "8000", self._protocol) from None
                return self._grpc(model, version)
            raise not_http(probe, failure) from None

    def _endpoint(self, transport: Transport) -> Endpoint:
        return self._address.endpoint(transport, self._tls, self._headers)

    def _wrong_port(self, speaks: str, usual: str, protocol: Protocol) -> TargetError:
        return TargetError(
            f"{self._address.place} {speaks}, which --protocol {protocol} does not use; its port is usually {usual}"
        )

    def _grpc_answers(self) -> bool:
        from conch.measure.bench.targets.kserve_grpc import speaks_http2  # HPACK is imported where it is needed: 30 ms

        return speaks_http2(self._endpoint(Transport.GRPC))

    # --- HTTP ---

    def _http(self, endpoint: Endpoint, probe: HttpProbe, model: str | None, version: str) -> BenchTarget:
        kserve = KServeHttp(probe, self._root)
        openai = OpenAiApi(probe, self._address.path)
        apis = [api for api in (kserve, openai) if self._answers(api)]
        if not apis:
            if self._key_needed is not None:
                raise self._key_needed
            raise not_an_inference_server(probe, probe.get(f"{self._root}/v2"))
        if self._protocol in _GRPC:
            raise self._wrong_port("speaks HTTP", "8001", self._protocol)
        if model is None:
            model = only_model(self._address.place, self._rows(apis))
        v2, by_openai = (api if api in apis else None for api in (kserve, openai))
        return self._http_target(endpoint, v2, by_openai, model, version)

    def _answers(self, api: ServerApi) -> bool:
        """Whether the server has an API; `known` of it says then who answers."""
        try:
            identity = api.identity()
        except KeyNeeded as locked:
            self._key_needed = locked
            return False
        api.known = identity or api.known
        return identity is not None

    def _rows(self, apis: Iterable[ServerApi]) -> list[ListedModel] | None:
        """Return the models of all APIs, or None if no API lists them."""
        only_openai = self._protocol is Protocol.OPENAI
        lists = [api.models() for api in apis if not only_openai or isinstance(api, OpenAiApi)]
        known = [rows for rows in lists if rows is not None]
        return [row for rows in known for row in rows] if known else None

    def _http_target(
        self, endpoint: Endpoint, v2: ServerApi | None, openai: ServerApi | None, name: str, version: str
    ) -> BenchTarget:
        by_openai = None if openai is None else openai.model(name, "")
        by_v2 = None if v2 is None else v2.model(name, version)
        if by_v2 is None and by_openai is None:
            if self._key_needed is not None and self._protocol in (None, Protocol.OPENAI):
                raise self._key_needed
            raise unknown_model(self._address.place, name, version, self._rows(filter(None, (v2, openai))))
        protocols = self._protocols(by_v2, by_openai)
        protocol = self._protocol or protocols[0]
        if protocol not in protocols:
            raise self._unavailable(protocol, protocols, name)
        uses_openai = protocol is Protocol.OPENAI
        api = openai if uses_openai else v2
        chosen = by_openai if uses_openai else by_v2
        assert api is not None
        assert chosen is not None
        if uses_openai and by_v2 is not None:
            chosen = replace(by_v2, kind=chosen.kind, context_length=chosen.context_length)
        if v2 is not None and openai is not None and v2.known.name == "triton":
            v2.known = replace(v2.known, name="conch")  # Triton has no OpenAI API on the same port
        return self._target(endpoint, api, chosen, protocol, protocols, v2 or api)

    def _protocols(self, by_v2: TargetModel | None, by_openai: TargetModel | None) -> tuple[Protocol, ...]:
        """Return the protocols over HTTP by which the model can be used, the best first."""
        protocols: list[Protocol] = []
        if by_openai is not None:
            protocols.append(Protocol.OPENAI)
        if by_v2 is not None:
            generate = [Protocol.GENERATE] if by_v2.kind is ModelKind.LANGUAGE else []
            tensors = [] if by_v2.decoupled else [Protocol.HTTP]
            by_tensors = generate + tensors or [Protocol.GENERATE]
            language = by_openai is not None and by_openai.kind is ModelKind.LANGUAGE
            protocols = protocols + by_tensors if language or by_openai is None else by_tensors + protocols
        return tuple(protocols)

    def _unavailable(self, protocol: Protocol, protocols: Sequence[Protocol], name: str) -> TargetError:
        if protocol is Protocol.OPENAI and self._key_needed is not None:
            return self._key_needed
        if protocol is Protocol.HTTP:
            reason = "is decoupled: it may send several responses; use generate, or grpc-stream on the gRPC port"
            return TargetError(f"model '{name}' {reason}" if Protocol.GENERATE in protocols else self._lacks(protocol))
        if protocol is Protocol.GENERATE and Protocol.HTTP in protocols:
            return TargetError(
                f"model '{name}' has no input text_input, which --protocol generate sends; use {protocols[0]}"
            )
        return TargetError(f"{self._lacks(protocol)} for model '{name}'; it has {', '.join(protocols)}")

    def _lacks(self, protocol: Protocol) -> str:
        return f"{self._address.place} does not have --protocol {protocol}"

    def _target(
        self,
        endpoint: Endpoint,
        api: ServerApi,
        model: TargetModel,
        protocol: Protocol,
        protocols: tuple[Protocol, ...],
        named: ServerApi,
    ) -> BenchTarget:
        return BenchTarget(
            url=self._address.url,
            endpoint=endpoint,
            protocol=protocol,
            base_path=api.base_path,
            server_name=named.known.name or api.known.name,
            server_version=named.known.version or api.known.version,
            model=model,
            protocols=protocols,
            metrics_url=find_metrics(endpoint, self._root) if self._metrics else None,
            repository_index=named.repository_index,
            notes=tuple(self._notes),
        )

    # --- gRPC ---

    def _grpc(self, model: str | None, version: str) -> BenchTarget:
        from conch.measure.bench.targets.kserve_grpc import KServeGrpc

        endpoint = self._endpoint(Transport.GRPC)
        api = KServeGrpc(endpoint)
        try:
            identity = api.identity()
        except NotHttp2 as failure:
            raise self._not_grpc(failure) from None
        if identity is None:
            raise TargetError(f"{self._address.place} is a gRPC server without KServe's inference service")
        api.known = replace(identity, name=server_name(identity.name, identity.version))
        rows = api.models()
        name = model or only_model(self._address.place, rows)
        target = api.model(name, version)
        if target is None:
            raise unknown_model(self._address.place, name, version, rows)
        protocol = self._protocol or (Protocol.GRPC_STREAM if target.decoupled else Protocol.GRPC)
        if protocol is Protocol.GRPC and target.decoupled:
            raise TargetError(f"model '{name}' is decoupled: it may send several responses; use grpc-stream")
        if protocol not in _GRPC:
            raise self._wrong_port("speaks gRPC", "8000", protocol)
        protocols = (Protocol.GRPC_STREAM,) if target.decoupled else _GRPC
        return self._target(endpoint, api, target, protocol, protocols, api)

    def _not_grpc(self, failure: TargetError) -> TargetError:
        """Return the error for a port without gRPC: it expects TLS, or speaks HTTP/1.1, or something else."""
        endpoint = self._endpoint(Transport.HTTP1)
        if endpoint.tls is None and speaks_tls(endpoint):
            return expects_tls(self._address.place)
        probe = HttpProbe(endpoint)
        try:
            answer = probe.get(f"{self._root}/v2")
        except TargetError:
            return failure
        if isinstance(answer.json, dict):
            return TargetError(f"{self._address.place} speaks HTTP/1.1; use http://, or the gRPC port, usually 8001")
        return not_an_inference_server(probe, answer)
