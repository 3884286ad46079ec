"""Entries of Triton's trace files, which Conch writes too: small JSON objects with the id of a span."""

from collections.abc import Iterable
from typing import Any

from conch.operate.traces.recorded_span import RecordedSpan


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
