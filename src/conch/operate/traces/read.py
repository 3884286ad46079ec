"""Reads trace files and URLs: bytes to requests, with what is wrong with a file."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from conch.base.errors import InvalidRequest
from conch.base.url_credentials import check_no_credentials
from conch.operate.traces.otlp_spans import is_otlp, spans_of_otlp
from conch.operate.traces.recorded_span import RecordedSpan, link
from conch.operate.traces.triton_entries import is_entry, spans_of_entries

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
        found = spans_of_entries(each for each in values if is_entry(each))
        found += spans_of_otlp(each for each in values if is_otlp(each))
        if not found:
            raise InvalidRequest(_nothing(source, values))
        roots += link(found)
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
            request = urllib.request.Request(source, headers={"Accept": "application/json"})  # noqa: S310
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as reply:  # noqa: S310
                data = reply.read(_MAX_BYTES + 1)
        else:
            with Path(source).open("rb") as file:
                data = file.read(_MAX_BYTES + 1)
    except urllib.error.HTTPError as error:
        error.close()
        raise InvalidRequest(f"{source}: HTTP status {error.code}; give the URL of a trace") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or getattr(error, "reason", None) or error
        raise InvalidRequest(f"{source}: {reason}") from None
    if len(data) > _MAX_BYTES:
        raise InvalidRequest(f"{source}: more than {_MAX_BYTES // 2**20} MiB; split the file, or set log-frequency")
    return bytes(data).decode("utf-8", "replace").lstrip("\ufeff")


def _values(source: str, text: str) -> tuple[list[dict[str, Any]], str]:
    """Return the objects of an array, of JSON lines or of a part of an array, and a warning if the text is cut.

    Triton writes the end of an array only when it stops, and a file may be read while it is written.
    """
    try:
        document = json.loads(text)
        return [each for each in (document if isinstance(document, list) else [document]) if isinstance(each, dict)], ""
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
    if any(is_entry(each) for each in values):
        return f"{source} has no timestamps; trace with --trace-config=level=TIMESTAMPS"
    if any(is_otlp(each) for each in values):
        return f"{source} has no spans of models; it must have spans of Conch or Triton (attribute triton.model_name)"
    return f"{source} has no trace; expected Triton's trace file or OpenTelemetry spans (OTLP in JSON)"
