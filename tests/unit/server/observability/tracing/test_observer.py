"""The observer: off by default, a bounded queue, one warning for dropped traces."""

import asyncio
import json
import logging
import threading
from pathlib import Path

import pytest

from conch.domain.request import InferRequest, Timeline
from conch.server.observability.tracing import observer as module
from conch.server.observability.tracing.observer import Observer
from conch.server.observability.tracing.trace_file import TraceFile
from conch.server.options.trace import TraceOptions

TRACED = {"levels": ("TIMESTAMPS",), "rate": 1}


def serve(observer: Observer, model: str = "m") -> None:
    """Have a request come and be answered without a response."""
    timeline = Timeline()
    trace = observer.begin("HTTP", model, timeline)
    if trace is None:
        return
    request = InferRequest(model, [], timeline=timeline)
    trace.read(request, 1)
    assert request.span is not None
    request.span.settled(request, None)
    trace.relay(lambda answer, final: None)(None, True)


async def test_the_observer_is_off_by_default(tmp_path: Path) -> None:
    observer = Observer(TraceOptions(file=str(tmp_path / "t.json"), rate=1))
    assert not observer.on
    observer.update("m", {"trace_level": ["TIMESTAMPS"], "trace_count": ["1"]})
    assert observer.on
    serve(observer, "other")
    serve(observer)
    assert not observer.on
    await observer.close()
    numbered = tmp_path / "t.json.0"
    assert numbered.exists()
    assert Observer(log_requests="errors").on


async def test_traces_are_written_without_waiting_for_the_end(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    observer = Observer(TraceOptions(file=str(path), **TRACED))
    serve(observer)
    while not path.exists():
        await asyncio.sleep(0.01)
    await observer.close()
    assert not observer.on
    assert json.loads(path.read_text())


async def test_a_full_queue_drops_traces_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "MAX_QUEUED_TRACES", 10)
    monkeypatch.setattr(module, "_MAX_BATCH_TRACES", 4)
    go_on, written = threading.Event(), []

    def slow(_: TraceFile, traces: list[object]) -> None:
        go_on.wait()
        written.extend(traces)

    monkeypatch.setattr(TraceFile, "write", slow)
    observer = Observer(TraceOptions(file=str(tmp_path / "t.json"), **TRACED))
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            serve(observer)
    go_on.set()
    await observer.close()
    assert len(written) == 12
    assert [record.getMessage() for record in caplog.records] == [
        "the queue of traces is full; dropping traces until they are written"
    ]


async def test_a_refused_request_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    observer = Observer(TraceOptions(file=str(path), **TRACED))
    trace = observer.begin("GRPC", "m", Timeline())
    assert trace is not None
    trace.refused(module.ConfigError("no"))
    await observer.close()
    names = [entry["timestamps"][0]["name"] for entry in json.loads(path.read_text()) if "timestamps" in entry]
    assert names == ["REQUEST_START", "REQUEST_END"]
