"""Trace files: complete after every write, numbered when they should be, tensors as Triton writes them."""

import json
import os
import resource
import signal
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from conch.domain.request import InferRequest, InferResponse, Timeline
from conch.domain.tensor import Tensor, pack_bytes
from conch.server.observability.tracing.request_trace import Trace
from conch.server.observability.tracing.trace_file import JsonArrayFile, TraceFile, lines_of
from conch.server.observability.tracing.trace_settings import TraceRules

NUMBERS = count(1)


def rules(*levels: str, trace_count: int = -1, log_frequency: int = 0) -> TraceRules:
    settings = {"trace_level": levels or ("TIMESTAMPS",), "trace_rate": 1}
    return TraceRules({**settings, "trace_count": trace_count, "log_frequency": log_frequency}, {})


def answered(by: TraceRules, *tensors: Tensor, request_id: str = "", inputs: tuple[Tensor, ...] = ()) -> Trace:
    """The trace of a request that a model has executed."""
    done: list[Trace] = []
    timeline = Timeline()
    trace = Trace("HTTP", "m", timeline, lambda: next(NUMBERS), done.append, rules=by)
    request = InferRequest("m", list(inputs), id=request_id, timeline=timeline)
    trace.read(request, 3)
    timeline.queued, timeline.started, timeline.input_done, timeline.infer_done = (
        timeline.received + n for n in range(4)
    )
    answer = InferResponse("m", 3, list(tensors), id=request_id)
    respond = trace.relay(lambda answer, final: None)
    assert request.span is not None
    request.span.settled(request, answer)
    assert done == []
    respond(answer, True)
    assert done == [trace]
    return trace


def test_a_file_is_complete_after_every_write(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text("what was there before")
    file = JsonArrayFile(str(path))
    written: list[int] = []
    for batch in ([1], [22, 333], [4]):
        file.append(str(number).encode() for number in batch)
        written += batch
        assert json.loads(path.read_text()) == written
    assert json.loads(path.read_text()) == written


@pytest.fixture
def full_disk() -> Iterator[Callable[[int], None]]:
    """Lets files grow no further than to a number of bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (limits[0] if size < 0 else size, limits[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, before)


def test_a_failed_write_restores_the_file(tmp_path: Path, full_disk: Callable[[int], None]) -> None:
    path = tmp_path / "t.json"
    file = JsonArrayFile(str(path))
    file.append([b"1"])
    full_disk(64)
    with pytest.raises(OSError, match="too large"):
        file.append([b"2" * 100])
    full_disk(-1)
    assert json.loads(path.read_text()) == [1]
    file.append([b"3"])
    assert json.loads(path.read_text()) == [1, 3]


def test_a_full_disk_gets_no_file_for_each_trace(tmp_path: Path, full_disk: Callable[[int], None]) -> None:
    file, often = TraceFile(str(tmp_path / "t.json")), rules(log_frequency=1)
    full_disk(8)
    for _ in range(5):
        with pytest.raises(OSError, match="too large"):
            file.write([answered(often)])
    assert list(tmp_path.iterdir()) == []
    full_disk(-1)
    file.write([answered(often)])
    assert [path.name for path in tmp_path.iterdir()] == ["t.json.0"]


def test_changes_of_settings_leave_a_bounded_number_of_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("conch.server.observability.tracing.trace_file.MAX_NUMBERED_FILES", 3)
    file = TraceFile(str(tmp_path / "t.json"))
    for _ in range(6):
        file.write([answered(rules(trace_count=5))])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.json.3", "t.json.4", "t.json.5"]
    assert caplog.text.count("the oldest are removed") == 1


def test_a_new_file_begins_after_log_frequency_traces(tmp_path: Path) -> None:
    path, often, counted = tmp_path / "t.json", rules(log_frequency=2), rules(trace_count=5)
    file = TraceFile(str(path))
    for _ in range(3):
        file.write([answered(often)])
    file.write([answered(counted), answered(counted)])
    file.write([answered(rules())])
    file.close()
    traces = {path.name: {entry["id"] for entry in json.loads(path.read_text())} for path in tmp_path.iterdir()}
    assert {name: len(ids) for name, ids in traces.items()} == {
        "t.json": 1,
        "t.json.0": 2,
        "t.json.1": 1,
        "t.json.2": 2,
    }


def test_no_descriptor_is_held_and_only_the_owner_may_read(tmp_path: Path) -> None:
    file = TraceFile(str(tmp_path / "trace"))
    alternating = [rules("TIMESTAMPS", trace_count=1 + number % 2) for number in range(20)]
    for by in (*alternating, rules("TIMESTAMPS")):
        file.write([answered(by)])
    # realpath of a descriptor that another thread has closed meanwhile is its path in /proc.
    opened = [os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()]
    assert not [path for path in opened if path.startswith(f"{tmp_path.resolve()}/")]
    files = sorted(tmp_path.iterdir())
    assert len(files) == 21
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}


def test_a_file_that_was_moved_away_is_begun_again(tmp_path: Path) -> None:
    file = TraceFile(str(tmp_path / "trace"))
    by = rules("TIMESTAMPS")
    file.write([answered(by, request_id="first")])
    (tmp_path / "trace").rename(tmp_path / "old")
    file.write([answered(by, request_id="second")])
    assert "first" in (tmp_path / "old").read_text()
    again = json.loads((tmp_path / "trace").read_text())
    assert [entry["request_id"] for entry in again if "request_id" in entry] == ["second"]


def test_a_trace_reads_as_tritons() -> None:
    trace = answered(rules(), request_id='a"b\n')
    entries = [json.loads(b"".join([line] if isinstance(line, bytes) else line)) for line in lines_of(trace)]
    number = trace.root.number
    assert {"id": number, "model_name": "m", "model_version": 3, "request_id": 'a"b\n'} in entries
    names = [entry["timestamps"][0]["name"] for entry in entries if "timestamps" in entry]
    assert sorted(names) == sorted(
        [
            "HTTP_RECV_START",
            "HTTP_RECV_END",
            "REQUEST_START",
            "QUEUE_START",
            "COMPUTE_START",
            "COMPUTE_INPUT_END",
            "COMPUTE_OUTPUT_START",
            "COMPUTE_END",
            "INFER_RESPONSE_COMPLETE",
            "REQUEST_END",
            "HTTP_SEND_START",
            "HTTP_SEND_END",
        ]
    )


@pytest.mark.parametrize(
    ("tensor", "data"),
    [
        (Tensor.from_numpy("T", np.array([[1.5, -2]], np.float32)), "1.5,-2"),
        (Tensor.from_numpy("T", np.array([[1, 0]], np.float16)), "1,0"),
        (Tensor.from_numpy("T", np.array([[-7, 300]], np.int64)), "-7,300"),
        (Tensor.from_numpy("T", np.array([[65, 200]], np.uint8)), "65,200"),
        (Tensor.from_numpy("T", np.array([[True, False]])), "1,0"),
        (Tensor("T", "BF16", (1, 2), np.array([0x3FC0, 0xC000], "<u2").tobytes()), "1.5,-2"),
        (Tensor("T", "BYTES", (1, 2), pack_bytes(["one", b"\xff"])), '"one","\\xff"'),
    ],
)
def test_tensors_are_written_with_their_elements(tensor: Tensor, data: str) -> None:
    trace = answered(rules("TENSORS"), tensor, inputs=(tensor,))
    entries = [json.loads(b"".join([line] if isinstance(line, bytes) else line)) for line in lines_of(trace)]
    described = {"name": "T", "data": data, "shape": "1,2", "dtype": tensor.datatype}
    activities = [(entry["activity"], entry["tensor"]) for entry in entries if "activity" in entry]
    assert activities == [("TENSOR_QUEUE_INPUT", described), ("TENSOR_BACKEND_OUTPUT", described)]
    assert not any("timestamps" in entry for entry in entries)
