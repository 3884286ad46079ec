# Compiled by mypyc in wheels.
"""Recorder of the event log: rows in rings of bounded size, always on.

A row is an object whose attributes have the names of the columns in `domain.events.layout`. The rings of requests,
batches and exchanges keep it as a line of `domain.events.lines`, because a ring is far larger than a processor's cache;
the row itself is filled again for the next. What is not used takes no memory. Names and codes are texts, which reading
the log turns into numbers.
"""

from time import monotonic_ns
from typing import Final

from mypy_extensions import mypyc_attr

from conch.base.errors import Cancelled, ConchError, FailureReason, QueueTimeout
from conch.domain.events.lines import Columns, ExchangeLine, ExecutionLine, LineRing, RequestLine
from conch.domain.events.rows import BatchRow, ExchangeRow, RequestRow, Ring, Row
from conch.domain.generation import GenerationRequest
from conch.domain.request import InferRequest, InferResponse, Timeline, tenant_of

# By kind: its share of the log's size, and the bytes of a row where it is compiled, with its place in a list. A request
# has about one batch and one call.
_SHARES: Final = {
    "requests": (0.37, 136),
    "batches": (0.30, 104),
    "exchanges": (0.24, 88),
    "steps": (0.05, 128),
    "pauses": (0.01, 64),
    "instances": (0.01, 80),
    "holds": (0.01, 80),
    "changes": (0.01, 88),
}
_MIN_ROWS: Final = 64
# Combinations of shapes whose texts are kept, for each model version.
_MAX_SHAPES: Final = 1024
_MAX_ID_CHARACTERS: Final = 128
_HASH_MASK: Final = (1 << 60) - 1


@mypyc_attr(acyclic=True)
class StepRow(Row):
    """One step of an engine."""

    __slots__ = (
        "cache_used",
        "cpu_ns",
        "cpu_wait_ns",
        "decode_tokens",
        "ended",
        "model",
        "preemptions",
        "prefill_tokens",
        "running",
        "started",
        "version",
        "waiting",
    )

    def __init__(self) -> None:
        self.model = ""
        self.version = self.started = self.ended = self.running = self.waiting = 0
        self.prefill_tokens = self.decode_tokens = self.preemptions = self.cache_used = 0
        self.cpu_ns = self.cpu_wait_ns = 0


@mypyc_attr(acyclic=True)
class PauseRow(Row):
    """One pause of the event loop."""

    __slots__ = ("cpu_ns", "cpu_wait_ns", "ended", "kind", "started")

    def __init__(self) -> None:
        self.kind = "stall"
        self.started = self.ended = self.cpu_ns = self.cpu_wait_ns = 0


@mypyc_attr(acyclic=True)
class InstanceRow(Row):
    """One change of an instance."""

    __slots__ = ("change", "instance", "model", "pid", "time", "version")

    def __init__(self) -> None:
        self.model = self.instance = ""
        self.change = "up"
        self.time = self.version = self.pid = 0


@mypyc_attr(acyclic=True)
class HoldRow(Row):
    """One wait of a model for the rate limiter."""

    __slots__ = ("ended", "holder", "instance", "model", "started", "version")

    def __init__(self) -> None:
        self.model = self.instance = self.holder = ""
        self.version = self.started = self.ended = 0


@mypyc_attr(acyclic=True)
class ChangeRow(Row):
    """One load, unload or change of limits."""

    __slots__ = ("change", "detail", "ended", "failed", "model", "started", "version")

    def __init__(self) -> None:
        self.change = "load"
        self.model = self.detail = ""
        self.version = self.failed = self.started = self.ended = 0


class EventRecorder:
    """The rings of one server; `size_bytes` is what they take when they are full, 0 for no recording.

    Methods belong to the event loop's thread, but for `pause`, which any thread may call that runs Python. Numbers are
    above `last_number`.
    """

    def __init__(self, size_bytes: int = 0, last_number: int = 0) -> None:
        self.on = size_bytes > 0
        sizes = {
            kind: max(int(size_bytes * share / row_bytes), _MIN_ROWS) for kind, (share, row_bytes) in _SHARES.items()
        }
        columns = Columns()
        self._requests = LineRing(sizes["requests"], RequestLine, columns)
        self._batches = LineRing(sizes["batches"], ExecutionLine, columns)
        self.exchanges: Ring = LineRing(sizes["exchanges"], ExchangeLine, columns)
        self.rings: dict[str, Ring] = {kind: Ring(size) for kind, size in sizes.items()}
        self.rings |= {"requests": self._requests, "batches": self._batches, "exchanges": self.exchanges}
        # To be filled, then added to a ring.
        self.request = RequestRow()
        self.batch = BatchRow()
        self._number = last_number

    def number(self) -> int:
        """Return the next number of a request, a batch or an exchange."""
        self._number += 1
        return self._number

    def add_request(self) -> None:
        """Add `request`, all of whose columns must have been set."""
        if self._requests.add(self.request):
            self.request = RequestRow()

    def add_batch(self) -> None:
        """Add `batch`, all of whose columns must have been set."""
        if self._batches.add(self.batch):
            self.batch = BatchRow()

    def exchange(self, timeline: Timeline, protocol: str) -> ExchangeRow:
        """Return the row of a client's call; the code that writes the response adds it to `exchanges`."""
        number = self.number()
        timeline.exchange = number
        return ExchangeRow(number, protocol, timeline.received)

    def pause(self, kind: str, started: int, ended: int, cpu_ns: int = 0, cpu_wait_ns: int = 0) -> None:
        """Record a pause of the event loop."""
        row = PauseRow()
        row.kind, row.started, row.ended, row.cpu_ns, row.cpu_wait_ns = kind, started, ended, cpu_ns, cpu_wait_ns
        self.add("pauses", row)

    def instance(self, change: str, time: int, model: str, version: int, instance: str, pid: int) -> None:
        """Record a change of an instance."""
        row = InstanceRow()
        row.change, row.time, row.model, row.version, row.instance, row.pid = (
            change,
            time,
            model,
            version,
            instance,
            pid,
        )
        self.add("instances", row)

    def change(
        self,
        change: str,
        started: int,
        ended: int,
        model: str,
        version: int = 0,
        *,
        failed: bool = False,
        detail: str = "",
    ) -> None:
        """Record a load, unload, reload or change of limits."""
        row = ChangeRow()
        row.change, row.started, row.ended, row.model, row.version = change, started, ended, model, version
        row.failed, row.detail = int(failed), detail
        self.add("changes", row)

    def changing(self, change: str, model: str) -> "RecordedChange":
        """Return a context manager that records a change, with the error that ends it."""
        return RecordedChange(self, change, model)

    def add(self, kind: str, row: Row) -> None:
        """Add a new row."""
        if self.on:
            self.rings[kind].add(row)


class RecordedChange:
    """Records a change from its begin to its end, and whether it failed."""

    def __init__(self, recorder: EventRecorder, change: str, model: str) -> None:
        self._recorder = recorder
        self._change = change
        self._model = model
        self._started = monotonic_ns()

    def __enter__(self) -> None:
        self._started = monotonic_ns()

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        detail = "" if error is None else type(error).__name__
        failed = error is not None
        self._recorder.change(self._change, self._started, monotonic_ns(), self._model, failed=failed, detail=detail)


class ModelEvents:
    """Writes the rows of one model version."""

    def __init__(self, recorder: EventRecorder, model: str, version: int) -> None:
        self.recorder = recorder
        self.on = recorder.on
        self.model = model
        self.version = version
        self._shapes: dict[object, str] = {}

    def begin(self, request: InferRequest) -> None:
        """Number a request that is admitted."""
        if self.on:
            request.number = self.recorder.number()

    def ended(
        self,
        request: InferRequest,
        batch: int,
        response: InferResponse | None,
        error: ConchError | None,
        *,
        first_response: int = 0,
        cache_hit: bool = False,
    ) -> None:
        """Record a request that has ended; its timeline is complete."""
        row = self.recorder.request
        self.fill(row, request, batch)
        row.first_token = first_response
        row.cache_hit = int(cache_hit)
        output_bytes = 0
        if response is not None:
            for tensor in response.outputs:
                output_bytes += tensor.nbytes
        row.output_bytes = output_bytes
        if error is None:
            row.outcome = "ok"
            row.reason = ""
        else:
            row.outcome = outcome_of(error)
            row.reason = reason_of(error)
        self.recorder.add_request()

    def fill(self, row: RequestRow, request: InferRequest, batch: int) -> None:
        """Fill the row of a request, as far as it has come; what only its end has is set to nothing."""
        timeline = request.timeline
        row.number = request.number
        row.parent = request.parent
        row.exchange = timeline.exchange
        row.batch = batch
        row.model = self.model
        row.version = self.version
        row.tenant = tenant_of(request.meter)
        row.reason = ""
        row.shape = self._shape(request)
        row.id = request.id if len(request.id) <= _MAX_ID_CHARACTERS else request.id[:_MAX_ID_CHARACTERS]
        row.outcome = "unfinished"
        row.cache_hit = 0
        row.priority = request.priority
        row.batch_size = request.batch_size
        row.prompt_tokens = row.completion_tokens = 0
        row.correlation = hash(request.correlation_id) & _HASH_MASK if request.correlation_id else 0
        input_bytes = 0
        for tensor in request.inputs:
            input_bytes += tensor.nbytes
        row.input_bytes = input_bytes
        row.output_bytes = 0
        row.received = timeline.received
        row.queued = timeline.queued
        row.started = timeline.started
        row.input_done = timeline.input_done
        row.infer_done = timeline.infer_done
        row.done = timeline.done
        row.first_token = 0
        row.deadline = timeline.deadline

    def held(self, started: int, ended: int, instance: str, holder: str) -> HoldRow:
        """Return the row of a wait for the rate limiter, because of what a model `holder` has."""
        row = HoldRow()
        row.model, row.version = self.model, self.version
        row.started, row.ended, row.instance, row.holder = started, ended, instance, holder
        return row

    def unfinished(self, request: InferRequest, batch: int = 0) -> RequestRow:
        """Return the row of a request that has not ended."""
        row = RequestRow()
        self.fill(row, request, batch)
        return row

    def generated(self, request: GenerationRequest, error: ConchError | None, tokens: tuple[int, int]) -> RequestRow:
        """Return the row of a generation, whose first token ends its queue; `tokens` are those of prompt and answer."""
        timeline = request.timeline
        row = RequestRow()
        row.number, row.parent, row.exchange = request.number, request.parent, timeline.exchange
        row.model, row.version = self.model, self.version
        row.tenant = tenant_of(request.meter)
        row.id = request.id[:_MAX_ID_CHARACTERS]
        row.priority, row.batch_size = max(request.priority, 0), request.params.n
        row.prompt_tokens, row.completion_tokens = tokens
        row.received, row.queued = timeline.received, timeline.queued or timeline.received
        row.started = row.input_done = row.first_token = timeline.started
        row.deadline = timeline.deadline
        if timeline.done:
            row.infer_done = row.done = timeline.done
            row.outcome = "ok" if error is None else outcome_of(error)
            row.reason = "" if error is None else reason_of(error)
        return row

    def refused(self, timeline: Timeline, error: ConchError, now: int) -> None:
        """Record a request that was refused before it was decoded."""
        if not self.on:
            return
        row = RequestRow()
        row.number = self.recorder.number()
        row.exchange = timeline.exchange
        row.model, row.version = self.model, self.version
        row.received, row.done = timeline.received, now
        row.outcome, row.reason = outcome_of(error), reason_of(error)
        self.recorder.add("requests", row)

    def _shape(self, request: InferRequest) -> str:
        """Return the names, datatypes and shapes of the inputs as a text."""
        inputs = request.inputs
        # The configuration fixes name and datatype of a single input, which most models have.
        key: object = inputs[0].shape if len(inputs) == 1 else tuple([(tensor.name, tensor.shape) for tensor in inputs])
        text = self._shapes.get(key)
        if text is None:
            text = "; ".join(
                [f"{tensor.name} {tensor.datatype} [{','.join(map(str, tensor.shape))}]" for tensor in inputs]
            )
            if len(self._shapes) < _MAX_SHAPES:
                self._shapes[key] = text
        return text


def outcome_of(error: ConchError) -> str:
    """Return the outcome of a request that ended with an error."""
    if isinstance(error, Cancelled):
        return "cancelled"
    if isinstance(error, QueueTimeout):
        return "timeout"
    return "rejected" if error.reason is FailureReason.REJECTED else "error"


def reason_of(error: ConchError) -> str:
    """Return the kind of an error, as the log names it."""
    name = type(error).__name__
    return "deadline" if name == "DeadlineMissed" else name
