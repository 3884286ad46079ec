"""Reads trace files and URLs: Triton's entries, and OpenTelemetry spans in JSON (OTLP, Tempo, Jaeger)."""

import base64
import binascii
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from conch.base.errors import InvalidRequest, Unavailable
from conch.base.http.client import HttpClient, HttpSettings
from conch.base.http.credentials import check_no_credentials
from conch.operate.traces.spans import RecordedSpan, link

_TIMEOUT_S = 30
_MAX_BYTES = 512 * 2**20
_SPACE = " \t\r\n,[]"


class RecordedTraces(NamedTuple):
    """The roots of all requests, the slowest first, and warnings about the sources."""

    requests: list[RecordedSpan]
    warnings: list[str]

    def find(self, wanted: str) -> RecordedSpan:
        """Return the request with an id: of a span or request, or a W3C trace id. Raises InvalidRequest."""
        text = wanted.lower().removeprefix("0x")
        for root in self.requests:
            for _, span in root.walk():
                if wanted in (span.id, span.request_id) or (span.trace_id and span.trace_id in (text, text.zfill(32))):
                    return root
        some = ", ".join(root.id for root in self.requests[:5])
        raise InvalidRequest(f"no request has the id '{wanted}'; ids are, for example, {some}")


def read_traces(sources: Sequence[str]) -> RecordedTraces:
    """Read files or URLs. Raises InvalidRequest if one cannot be read or there is no request with timestamps."""
    roots, warnings = list[RecordedSpan](), list[str]()
    for source in sources:
        values, problem = _values(source, _load(source))
        if problem:
            warnings.append(problem)
        spans = spans_of_entries(item for item in values if is_entry(item))
        spans += spans_of_otlp(item for item in values if is_otlp(item))
        if not spans:
            raise InvalidRequest(_nothing(source, values))
        roots += link(spans)
    roots.sort(key=lambda root: -root.ns)
    orphans = sum(1 for root in roots if root.parent and not root.trace_id)
    if orphans:
        warnings.append(f"{orphans} request(s) have a parent that is not in the file; they are shown on their own")
    return RecordedTraces(roots, warnings)


def _load(source: str) -> str:
    try:
        check_no_credentials(source)
    except ValueError as error:
        raise InvalidRequest(str(error)) from None
    try:
        if source.startswith(("http://", "https://")):
            data = _download(source)
        else:
            with Path(source).open("rb") as file:
                data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise InvalidRequest(f"{source}: {error.strerror or error}") from None
    except Unavailable as error:
        raise InvalidRequest(error.message) from None
    if len(data) > _MAX_BYTES:
        raise InvalidRequest(f"{source}: more than {_MAX_BYTES // 2**20} MiB; split the file, or set log-frequency")
    return bytes(data).decode("utf-8", "replace").lstrip("\ufeff")


def _download(url: str) -> bytes:
    with HttpClient(HttpSettings.once(_TIMEOUT_S)).open("GET", url, {"Accept": "application/json"}) as response:
        if response.status != 200:
            raise InvalidRequest(f"{url}: HTTP status {response.status}; give the URL of a trace")
        return response.start(_MAX_BYTES + 1)


def _values(source: str, text: str) -> tuple[list[dict[str, Any]], str]:
    """Return the objects of an array, of JSON lines or of a part of an array, and a warning if the text is cut.

    Triton writes the end of an array only when it stops, and a file may be read while it is written.
    """
    try:
        document = json.loads(text)
        return [item for item in (document if isinstance(document, list) else [document]) if isinstance(item, dict)], ""
    except (ValueError, RecursionError):
        pass
    complete = list(_complete_objects(text))
    values, end = [value for value, _ in complete], complete[-1][1] if complete else 0
    rest = text[end:].strip(_SPACE)
    if not values:
        line = text.count("\n", 0, end) + 1
        raise InvalidRequest(f"{source}: line {line} is not valid JSON; expected a trace file or OTLP in JSON")
    if not rest:
        return values, "" if text.lstrip()[0] == "{" else f"{source} has no end: it is still written, or was cut"
    line = text.count("\n", 0, len(text) - len(text[end:].lstrip(_SPACE))) + 1
    return values, f"{source} is cut or damaged in line {line}; {len(values)} entries before it are shown"


def _complete_objects(text: str) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield objects from the start, with the positions of their ends, until one is incomplete."""
    decoder, at = json.JSONDecoder(), 0
    while True:
        while at < len(text) and text[at] in _SPACE:
            at += 1
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return
        if not isinstance(value, dict):
            return
        yield value, at


def _nothing(source: str, values: Sequence[dict[str, Any]]) -> str:
    if any(is_entry(item) for item in values):
        return f"{source} has no timestamps; trace with --trace-config=level=TIMESTAMPS"
    if any(is_otlp(item) for item in values):
        return f"{source} has no spans of models; it must have spans of Conch or Triton (attribute triton.model_name)"
    return f"{source} has no trace; expected Triton's trace file or OpenTelemetry spans (OTLP in JSON)"


def is_entry(value: object) -> bool:
    """Return whether a JSON value is an entry."""
    return isinstance(value, dict) and "id" in value and not {"resourceSpans", "batches", "result"} & set(value)


def spans_of_entries(entries: Iterable[dict[str, Any]]) -> list[RecordedSpan]:
    """Return the spans that have timestamps. Values of wrong types are ignored."""
    spans = dict[str, RecordedSpan]()
    for entry in entries:
        span = spans.setdefault(str(entry["id"]), RecordedSpan(str(entry["id"])))
        if "model_name" in entry:
            span.model = str(entry["model_name"])
            span.version = str(entry.get("model_version", ""))
            span.request_id = str(entry.get("request_id", ""))
            span.parent = str(entry.get("parent_id", ""))
        error = entry.get("error")
        if isinstance(error, dict):
            span.error = str(error.get("message") or error.get("code") or "failed")
        stamps = entry.get("timestamps")
        for stamp in stamps if isinstance(stamps, list) else ():
            if isinstance(stamp, dict) and isinstance(stamp.get("ns"), int):
                span.marks.append((str(stamp.get("name", "")), stamp["ns"]))
    return [span for span in spans.values() if span.marks]


_HEX = frozenset("0123456789abcdefABCDEF")
_WHOLE, _COMPUTE = "InferRequest", "compute"


def is_otlp(value: object) -> bool:
    """Return whether a JSON value holds spans."""
    return isinstance(value, dict) and any(name in value for name in ("resourceSpans", "batches", "result"))


def spans_of_otlp(documents: Iterable[dict[str, Any]]) -> list[RecordedSpan]:
    """Return the spans of models. Those of the whole request and of the execution become marks of them."""
    raw = {_id(span.get("spanId")): span for document in documents for span in _raw_spans(document)}
    spans = dict[str, RecordedSpan]()
    for number, span in raw.items():
        attributes = _attributes(span)
        if "triton.model_name" in attributes:
            spans[number] = RecordedSpan(
                number,
                _id(span.get("parentSpanId")),
                attributes["triton.model_name"],
                attributes.get("triton.model_version", ""),
                attributes.get("triton.request_id", ""),
                _id(span.get("traceId")),
                _error(span),
                list(_marks(span)),
            )
    for span in raw.values():
        if span.get("name") == _COMPUTE and (parent := spans.get(_id(span.get("parentSpanId")))):
            parent.marks += _marks(span)
    for model in spans.values():
        above = raw.get(model.parent, {})
        if above.get("name") == _WHOLE:
            model.marks += _marks(above)
    return list(spans.values())


def _raw_spans(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    inner = document.get("result", document)
    resources = inner.get("resourceSpans") or inner.get("batches") if isinstance(inner, dict) else ()
    for resource in _dicts(resources):
        for scope in _dicts(resource.get("scopeSpans") or resource.get("instrumentationLibrarySpans")):
            yield from _dicts(scope.get("spans"))


def _dicts(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _id(value: object) -> str:
    """Return an id in hexadecimal; Tempo writes base64."""
    text = value if isinstance(value, str) else ""
    if len(text) in (16, 32) and set(text) <= _HEX:
        return text.lower()
    try:
        return base64.b64decode(text, validate=True).hex()
    except (binascii.Error, ValueError):
        return text


def _attributes(span: Mapping[str, Any]) -> dict[str, str]:
    pairs = {}
    for attribute in _dicts(span.get("attributes")):
        value = attribute.get("value")
        pairs[str(attribute.get("key"))] = str(next(iter(value.values()), "")) if isinstance(value, dict) else ""
    return pairs


def _marks(span: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for event in _dicts(span.get("events")):
        text = str(event.get("timeUnixNano", ""))
        if text.isdecimal():
            yield str(event.get("name", "")), int(text)


def _error(span: Mapping[str, Any]) -> str:
    status = span.get("status")
    if not isinstance(status, dict) or status.get("code") not in (2, "STATUS_CODE_ERROR"):
        return ""
    return str(status.get("message") or "failed")
