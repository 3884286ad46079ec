"""OpenTelemetry spans of Conch and Triton in OTLP's JSON form: from a collector's file exporter, Tempo or Jaeger."""

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from conch.operate.traces.recorded_span import RecordedSpan

_HEX = frozenset("0123456789abcdefABCDEF")
_WHOLE, _COMPUTE = "InferRequest", "compute"


def is_otlp(value: object) -> bool:
    """Return whether a JSON value holds spans."""
    return isinstance(value, dict) and any(name in value for name in ("resourceSpans", "batches", "result"))


def spans_of_otlp(documents: Iterable[dict[str, Any]]) -> list[RecordedSpan]:
    """Return the spans of models. Those of the whole request and of the execution become marks of them."""
    raw = {_id(span.get("spanId")): span for document in documents for span in _raw_spans(document)}
    found = dict[str, RecordedSpan]()
    for number, span in raw.items():
        attributes = _attributes(span)
        if "triton.model_name" in attributes:
            found[number] = RecordedSpan(
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
        if span.get("name") == _COMPUTE and (parent := found.get(_id(span.get("parentSpanId")))):
            parent.marks += _marks(span)
    for model in found.values():
        above = raw.get(model.parent, {})
        if above.get("name") == _WHOLE:
            model.marks += _marks(above)
    return list(found.values())


def _raw_spans(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    inner = document.get("result", document)
    resources = inner.get("resourceSpans") or inner.get("batches") if isinstance(inner, dict) else ()
    for resource in _dicts(resources):
        for scope in _dicts(resource.get("scopeSpans") or resource.get("instrumentationLibrarySpans")):
            yield from _dicts(scope.get("spans"))


def _dicts(value: object) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


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
    for each in _dicts(span.get("attributes")):
        value = each.get("value")
        pairs[str(each.get("key"))] = str(next(iter(value.values()), "")) if isinstance(value, dict) else ""
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
