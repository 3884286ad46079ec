"""The line of a request: its fields in both formats of the log, and escaped texts from clients."""

import json
import logging
from itertools import count
from typing import Any

import pytest

from conch.base.errors import NotFound
from conch.base.logs import JsonFormatter, LineFormatter
from conch.domain.request import InferRequest, InferResponse, Timeline
from conch.domain.tensor import Tensor
from conch.server.observability.tracing import request_log
from conch.server.observability.tracing.request_log import RequestLog, fields_of
from conch.server.observability.tracing.request_trace import Trace, read_context

HOSTILE = 'x"\nI0101 00:00:00 fake] "line"\x1b[31m\x9b1m\u2028\udcff\u202e'


def trace_of(model: str, *, request_id: str = "", error: NotFound | None = None) -> Trace:
    timeline = Timeline()
    trace = Trace("HTTP", model, timeline, count(1).__next__, lambda _: None)
    if error is not None:
        trace.refused(error)
        return trace
    request = InferRequest(model, [Tensor("IN", "INT8", (3,), b"123")], id=request_id, timeline=timeline)
    trace.read(request, 1)
    respond = trace.relay(lambda answer, final: None)
    answer = InferResponse(model, 1, [Tensor("OUT", "INT8", (2,), b"12")])
    assert request.span is not None
    step = InferRequest("step", [])
    request.span.child(step, 2)
    assert step.span is not None
    times = step.timeline
    times.queued, times.started, times.input_done, times.infer_done, times.done = (
        times.received + moment for moment in (1_000, 3_000, 4_000, 6_000, 9_000)
    )
    step.span.settled(step, answer)
    request.span.settled(request, answer)
    respond(answer, True)
    return trace


def test_a_line_has_the_outcome_of_a_request() -> None:
    fields = fields_of(trace_of("m", request_id="7"))
    assert fields.pop("total_us") >= 0
    step = {"model": "step", "version": 2, "queue_us": 2, "compute_us": 6, "total_us": 9}
    assert fields == {
        "request_id": "7",
        "protocol": "http",
        "model": "m",
        "version": 1,
        "status": "OK",
        "batch_size": 1,
        "queue_us": 2,
        "compute_us": 6,
        "bytes_in": 3,
        "bytes_out": 2,
        "stages": [step],
    }


def test_a_refused_request_has_a_line_with_the_reason() -> None:
    fields = fields_of(trace_of("nowhere", error=NotFound("unknown model " + "x" * 1000)))
    assert (fields["model"], fields["status"], fields["reason"]) == ("nowhere", "NOT_FOUND", "OTHER")
    assert fields["error"].startswith("unknown model ")
    assert len(fields["error"]) == request_log._MAX_ERROR_CHARACTERS


@pytest.mark.parametrize(("wanted", "lines"), [("errors", ["bad"]), ("all", ["good", "bad"]), ("off", [])])
def test_lines_are_written_for_all_requests_or_those_that_failed(
    caplog: pytest.LogCaptureFixture, wanted: str, lines: list[str]
) -> None:
    caplog.set_level(logging.INFO, "conch")
    RequestLog(wanted).write([trace_of("good"), trace_of("bad", error=NotFound("no"))])
    assert [record.fields["model"] for record in caplog.records] == lines  # type: ignore[attr-defined]


def record(**extra: Any) -> logging.LogRecord:
    made = logging.LogRecord("conch", logging.INFO, "here.py", 1, "request", (), None)
    vars(made).update(extra)
    return made


def test_names_from_clients_cannot_inject_lines() -> None:
    hostile = record(fields=fields_of(trace_of(HOSTILE, request_id=HOSTILE)))
    line = LineFormatter().format(hostile)
    assert len(line.splitlines()) == 1
    assert line.isprintable()
    assert line.encode()
    written = json.loads(JsonFormatter().format(hostile))
    assert (written["model"], written["request_id"]) == (HOSTILE, HOSTILE)
    assert JsonFormatter().format(hostile).isascii()


def test_a_json_line_has_all_that_a_record_carries() -> None:
    written = json.loads(
        JsonFormatter().format(record(instance="m_0_0", source="model.py:7", block="a\nb", fields={"n": 1}))
    )
    assert written.pop("time").endswith("Z")
    assert written.pop("pid")
    assert written == {
        "level": "INFO",
        "message": "request",
        "source": "model.py:7",
        "instance": "m_0_0",
        "block": "a\nb",
        "n": 1,
    }


@pytest.mark.parametrize(
    "header",
    [
        "",
        "00-" + "0" * 32 + "-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01",
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
    ],
)
def test_a_malformed_context_is_ignored(header: str) -> None:
    assert read_context(header) is None


def test_a_context_is_read() -> None:
    context = read_context("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "a=b")
    assert context is not None
    assert (f"{context.trace_id:x}", f"{context.span_id:x}") == ("af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
    assert (context.sampled, context.state) == (True, "a=b")
