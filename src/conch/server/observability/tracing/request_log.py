"""The request log of `--log-requests`: one line per request with its outcome, times and sizes.

Lines have no contents of headers and tensors. The log format escapes ids and other texts from clients.
"""

import logging
from collections.abc import Iterable, Sequence
from typing import Any

from conch.base.errors import FailureReason
from conch.server.observability.tracing.request_trace import ModelSpan, Trace

_log = logging.getLogger(__name__)

# Error messages may quote the request.
_MAX_ERROR_CHARACTERS = 300
_MAX_STAGES = 64


class RequestLog:
    """Writes lines of requests: those selected by `--log-requests` at level info, others at verbosity 1."""

    def __init__(self, selection: str) -> None:
        self._selection = selection

    def __repr__(self) -> str:
        return "request log"

    def write(self, traces: Sequence[Trace]) -> None:
        """Write a line for each."""
        for trace in traces:
            level = self._level(failed=trace.error is not None)
            if _log.isEnabledFor(level):
                _log.log(level, "request", extra={"fields": fields_of(trace)})

    def unread(self, protocol: str, path: str, status: str, error: str) -> None:
        """Write a line for a request that was refused before its model was known, on the caller's thread."""
        level = self._level(failed=True)
        if _log.isEnabledFor(level):
            fields = {"protocol": protocol.lower(), "path": path[:_MAX_ERROR_CHARACTERS], "status": status}
            fields |= {"reason": FailureReason.REJECTED.value, "error": error[:_MAX_ERROR_CHARACTERS]}
            _log.log(level, "request", extra={"fields": fields})

    def _level(self, *, failed: bool) -> int:
        is_selected = self._selection == "all" or (self._selection == "errors" and failed)
        return logging.INFO if is_selected else logging.DEBUG

    def close(self) -> None:
        """Do nothing."""


def fields_of(trace: Trace) -> dict[str, Any]:
    """Return the fields of a request's line; times are microseconds, sizes are bytes of tensors."""
    root, error = trace.root, trace.error
    fields: dict[str, Any] = {
        "request_id": root.request_id,
        "protocol": trace.protocol.lower(),
        "model": root.model,
        "version": root.version,
        "status": "OK" if error is None else error.code.name,
    }
    if error is not None:
        fields["reason"] = error.reason.value
        fields["error"] = error.message[:_MAX_ERROR_CHARACTERS]
    fields["batch_size"] = root.batch_size
    if root.batch_requests:
        fields["requests_in_batch"] = root.batch_requests
    fields |= _times(trace, root)
    fields["total_us"] = (trace.closed - trace.received) // 1000
    fields["bytes_in"] = root.input_bytes
    fields["bytes_out"] = root.output_bytes
    if root.responses > 1:
        fields["responses"] = root.responses
    if root.prompt_tokens:
        fields["prompt_tokens"] = root.prompt_tokens
    if root.completion_tokens:
        fields["completion_tokens"] = root.completion_tokens
    if root.cached:
        fields["cache_hit"] = True
    if trace.trace_id:
        fields["trace_id"] = f"{trace.trace_id:032x}"
    elif trace.rules is not None:
        fields["trace_id"] = str(root.number)
    stages = [_stage(trace, span) for span in trace.spans[1 : _MAX_STAGES + 1]]
    if stages:
        fields["stages"] = stages
    return fields


def _stage(trace: Trace, span: ModelSpan) -> dict[str, Any]:
    stage: dict[str, Any] = {"model": span.model, "version": span.version, **_times(trace, span)}
    stage["total_us"] = (span.timeline.done - span.timeline.received) // 1000
    if span.cached:
        stage["cache_hit"] = True
    if span.error is not None:
        stage["status"] = span.error.code.name
    return stage


def _times(trace: Trace, span: ModelSpan) -> dict[str, int]:
    queue, compute = _queue_and_compute(span)
    if not compute and not span.cached:  # an ensemble's times are the sums over its steps
        steps = [_queue_and_compute(step) for step in _below(trace, span)]
        queue += sum(step[0] for step in steps)
        compute += sum(step[1] for step in steps)
    return {"queue_us": queue // 1000, "compute_us": compute // 1000}


def _queue_and_compute(span: ModelSpan) -> tuple[int, int]:
    timeline = span.timeline
    if span.cached or not timeline.input_done:
        return 0, 0
    return timeline.started - timeline.queued, timeline.done - timeline.started


def _below(trace: Trace, span: ModelSpan) -> Iterable[ModelSpan]:
    """Yield the steps of an ensemble, recursively; without BLS calls."""
    for step in trace.spans:
        if step.parent == span.number:
            if step.timeline.input_done or step.cached:
                yield step
            else:
                yield from _below(trace, step)
