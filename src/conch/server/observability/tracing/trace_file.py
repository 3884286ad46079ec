"""Write traces to files in Triton's format: a JSON array of small objects, those of one span with the same `id`.

    {"id":1,"model_name":"echo","model_version":1,"request_id":"a","parent_id":…}
    {"id":1,"timestamps":[{"name":"QUEUE_START","ns":…}]}
    {"id":1,"error":{"code":"UNAVAILABLE","reason":"REJECTED","message":…}}         (not in Triton's)
    {"id":1,"activity":"TENSOR_QUEUE_INPUT","tensor":{"name":"IN","data":"1,2","shape":"1,2","dtype":"FP32"}}

A file is a complete array after every write, which overwrites the closing bracket. With a count or a log frequency,
traces are written to numbered files, `<file>.0`, `<file>.1` … Each change of the settings begins another one, so the
oldest of them are removed at a bound.
"""

import logging
import os
from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from time import sleep
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import orjson

from conch.base.errors import ConchError
from conch.domain.tensor import BYTES, NUMPY_DTYPES, Tensor, unpack_bytes
from conch.server.observability.tracing.request_trace import ModelSpan, TensorNote, Trace
from conch.server.observability.tracing.trace_settings import TraceRules

_log = logging.getLogger(__name__)

MAX_NUMBERED_FILES = 1000
_MAX_ERROR_CHARACTERS = 300
_BLOCK_BYTES = 2**18
_BLOCK_ELEMENTS = 4096
# Between blocks of elements, to release the GIL: otherwise the event loop waits 5 ms for it each time.
_PAUSE_S = 0.0005
_NO_DATA = b'"data":""'
_Decoder = getincrementaldecoder("utf-8")


class JsonArrayFile:
    """A growing file with one JSON array. The first write truncates it; a new file is readable by its owner only.

    It is only open during a write, so that files do not use up descriptors, and a file that was moved is created again.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._end = 0  # position of the closing bracket

    def append(self, values: Iterable[bytes | Iterable[bytes]]) -> None:
        """Append JSON texts, each whole or in pieces. Raises OSError; the file is then restored, if possible."""
        truncate = 0 if self._end else os.O_TRUNC
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | truncate, 0o600)
        try:
            if self._end and os.fstat(file).st_size <= self._end:
                os.ftruncate(file, 0)
                self._end = 0
            self._append(file, values)
        finally:
            os.close(file)

    def _append(self, file: int, values: Iterable[bytes | Iterable[bytes]]) -> None:
        position = self._end
        try:
            for data in _blocks(b"[" if self._end == 0 else b",\n", values):
                rest = memoryview(data)
                while rest:
                    written = os.pwrite(file, rest, position)
                    rest = rest[written:]
                    position += written
        except Exception:
            if self._end:
                os.ftruncate(file, self._end)
                os.pwrite(file, b"]", self._end)
            raise
        self._end = position - 1


def _blocks(begin: bytes, values: Iterable[bytes | Iterable[bytes]]) -> Iterator[bytes]:
    """Yield the text of an array's further values in blocks that are small, since building one holds the GIL."""
    parts, size = [begin], 0
    for value in values:
        for piece in (value,) if isinstance(value, bytes) else value:
            parts.append(piece)
            size += len(piece)
            if size >= _BLOCK_BYTES:
                yield b"".join(parts)
                parts, size = [], 0
        parts.append(b",\n")
    parts[-1:] = [b"]"]
    yield b"".join(parts)


class TraceFile:
    """The sink for the trace file `path` and the numbered files."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._whole = JsonArrayFile(path)
        self._numbered: WeakKeyDictionary[TraceRules, tuple[JsonArrayFile, int]] = WeakKeyDictionary()
        self._files: deque[Path] = deque()  # the numbered ones, the oldest first
        self._next = 0

    def __repr__(self) -> str:
        return f"trace file '{self._path}'"

    def write(self, traces: Sequence[Trace]) -> None:
        """Write traces. Raises OSError."""
        whole: list[Iterator[bytes | Iterator[bytes]]] = []
        for trace in traces:
            rules = trace.rules
            if rules is None:
                continue
            if rules.counted or rules.log_frequency:
                self._write_numbered(rules, lines_of(trace))
            else:
                whole.append(lines_of(trace))
        if whole:
            self._whole.append(chain.from_iterable(whole))

    def close(self) -> None:
        """Do nothing: files are complete after each write."""

    def _write_numbered(self, rules: TraceRules, lines: Iterator[bytes | Iterator[bytes]]) -> None:
        file, traces = self._numbered.get(rules, (None, 0))
        if file is None:
            file = self._begun(lines)
        else:
            file.append(lines)
        traces += 1
        if traces == rules.log_frequency:
            self._numbered.pop(rules, None)
        else:
            self._numbered[rules] = file, traces

    def _begun(self, lines: Iterator[bytes | Iterator[bytes]]) -> JsonArrayFile:
        """Begin a numbered file. Raises OSError, and then leaves no file: a full disk would get one for each trace."""
        path = Path(f"{self._path}.{self._next}")
        file = JsonArrayFile(str(path))
        try:
            file.append(lines)
        except BaseException:
            with suppress(OSError):
                path.unlink()
            raise
        self._next += 1
        self._files.append(path)
        if len(self._files) > MAX_NUMBERED_FILES:
            if self._next == MAX_NUMBERED_FILES + 1:
                _log.warning('%d trace files "%s.…" are written; the oldest are removed', self._next, self._path)
            with suppress(OSError):
                self._files.popleft().unlink()
        return file


def lines_of(trace: Trace) -> Iterator[bytes | Iterator[bytes]]:
    """Yield the objects of a trace, in chronological order per span, and those of tensors in pieces."""
    for span in trace.spans:
        entries: list[tuple[int, dict[str, Any] | TensorNote]] = [(span.begun, _head(span))]
        if trace.timestamps:
            times = (*(trace.marks if span is trace.root else ()), *activities_of(span))
            entries += ((at, {"id": span.number, "timestamps": [{"name": name, "ns": at}]}) for name, at in times)
        if span.error is not None:
            entries.append((span.timeline.done, _failure(span, span.error)))
        entries += ((_time_of(span, note), note) for note in span.tensors)
        for _, entry in sorted(entries, key=lambda timed: timed[0]):
            yield _tensor_line(span, entry) if isinstance(entry, TensorNote) else orjson.dumps(entry)


def activities_of(span: ModelSpan) -> list[tuple[str, int]]:
    """Return the activities of a request with times, in nanoseconds of the monotonic clock, in chronological order."""
    timeline = span.timeline
    activities = [("REQUEST_START", span.begun)]
    if timeline.queued:
        activities.append(("QUEUE_START", timeline.queued))
    activities += compute_of(span)
    if span.error is None and not span.parent:
        activities.append(("INFER_RESPONSE_COMPLETE", timeline.done))
    activities.append(("REQUEST_END", timeline.done))
    return activities


def compute_of(span: ModelSpan) -> list[tuple[str, int]]:
    """Return the activities of the execution; none for an ensemble, a cache hit or a request that was not executed."""
    timeline = span.timeline
    if not timeline.input_done or span.cached:
        return []
    return [
        ("COMPUTE_START", timeline.started),
        ("COMPUTE_INPUT_END", timeline.input_done),
        ("COMPUTE_OUTPUT_START", timeline.infer_done),
        ("COMPUTE_END", timeline.done),
    ]


def _head(span: ModelSpan) -> dict[str, Any]:
    head: dict[str, Any] = {"id": span.number, "model_name": span.model, "model_version": span.version}
    if span.request_id:
        head["request_id"] = span.request_id
    if span.parent:
        head["parent_id"] = span.parent
    return head


def _failure(span: ModelSpan, error: ConchError) -> dict[str, Any]:
    """Return the entry of a request that was refused or failed. Triton has none: its readers skip it."""
    message = error.message[:_MAX_ERROR_CHARACTERS]
    return {"id": span.number, "error": {"code": error.code.name, "reason": error.reason.value, "message": message}}


def _time_of(span: ModelSpan, note: TensorNote) -> int:
    timeline = span.timeline
    if note.activity == "TENSOR_QUEUE_INPUT":
        return timeline.queued or timeline.received
    return timeline.infer_done or timeline.done


def _tensor(span: ModelSpan, note: TensorNote) -> dict[str, Any]:
    tensor = note.tensor
    described = {
        "name": tensor.name,
        "data": "",
        "shape": ",".join(map(str, tensor.shape)),
        "dtype": tensor.datatype,
    }
    return {"id": span.number, "activity": note.activity, "tensor": described}


def _tensor_line(span: ModelSpan, note: TensorNote) -> Iterator[bytes]:
    """Yield the entry of a tensor in pieces: one string of 60 MB would hold the GIL for a second."""
    # Unambiguous, because quotation marks in the name are escaped.
    head, _, tail = orjson.dumps(_tensor(span, note)).partition(_NO_DATA)
    yield head + _NO_DATA[:-1]
    for piece in _data(note.tensor):
        yield orjson.dumps(piece)[1:-1]
    yield b'"' + tail


def _data(tensor: Tensor) -> Iterator[str]:
    """Yield the elements, separated by commas; texts are in quotation marks."""
    if tensor.datatype == BYTES:
        separator = '"'
        try:
            elements = unpack_bytes(tensor.data)
        except ValueError:  # a model may send elements that are cut; the traces of others are in this file, too
            return
        for element in elements:
            yield separator
            decoder = _Decoder("backslashreplace")
            for begin in range(0, len(element), _BLOCK_BYTES):
                yield decoder.decode(element[begin : begin + _BLOCK_BYTES])
            yield decoder.decode(b"", final=True) + '"'
            separator = ',"'
        return
    if tensor.datatype == "BF16":  # the upper half of an FP32
        values = (np.frombuffer(tensor.data, "<u2").astype("<u4") << 16).view("<f4")
    else:
        values = np.frombuffer(tensor.data, NUMPY_DTYPES[tensor.datatype])
    for begin in range(0, len(values), _BLOCK_ELEMENTS):
        if begin:
            sleep(_PAUSE_S)
        some = values[begin : begin + _BLOCK_ELEMENTS].tolist()
        separator = "," if begin else ""
        if values.dtype.kind == "f":
            yield separator + ",".join(f"{value:g}" for value in some)
        else:
            yield separator + ",".join(str(int(value)) for value in some)
