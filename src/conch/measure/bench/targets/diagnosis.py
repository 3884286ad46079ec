"""Say what answered, where it is not an inference server."""

import re
from urllib.parse import urlsplit

from conch.measure.bench.targets.http_probe import HttpAnswer, HttpProbe, NotHttp, first_line, place, speaks_tls
from conch.measure.bench.targets.target import TargetError

_METRICS = re.compile(rb"^# (?:HELP|TYPE) ", re.MULTILINE)
_TITLE = re.compile(rb"<title[^>]*>\s*([^<]+?)\s*</title>", re.IGNORECASE)
_BANNERS = (
    (b"SSH-", "an SSH server"),
    (b"-ERR", "Redis"),
    (b"220 ", "a mail or FTP server"),
    (b"\x15\x03", "a TLS server"),
)


def not_an_inference_server(probe: HttpProbe, first: HttpAnswer) -> TargetError:
    """Return the error for a server of HTTP that has none of the APIs; `first` is its answer to `/v2`."""
    where = place(probe.endpoint)
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
    where = place(probe.endpoint)
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
