# Compiled by mypyc in wheels.
"""Rings of rows of the event log, and the rows of requests, executions and clients' calls, which many parts fill."""

from mypy_extensions import mypyc_attr


@mypyc_attr(acyclic=True)
class Row:
    """A row of any kind. Rows refer to texts and numbers only, so that garbage collection can ignore them."""

    __slots__ = ()


class Ring:
    """The newest rows of one kind. Row number n, from 0, is at index n modulo `size`."""

    __slots__ = ("rows", "size", "written")

    def __init__(self, size: int) -> None:
        self.rows: list[Row] = []
        self.size = size
        self.written = 0  # how many rows, with those that are overwritten

    def add(self, row: Row) -> bool:
        """Add a row in the place of the oldest; return whether the ring keeps it, so that it must not be reused."""
        index = self.written
        self.written = index + 1
        if index < self.size:
            self.rows.append(row)
        else:
            self.rows[index % self.size] = row
        return True

    @property
    def lost(self) -> int:
        """How many rows have been overwritten."""
        return max(self.written - self.size, 0)

    def row(self, number: int) -> Row | None:
        """Return a row by its number; None if it has been overwritten."""
        index = number % self.size
        return self.rows[index] if self.lost <= number and index < len(self.rows) else None


@mypyc_attr(acyclic=True)
class ExchangeRow(Row):
    """One call of a client. `id` are texts by which it is found, separated by spaces."""

    __slots__ = (
        "answered",
        "body_done",
        "bytes_in",
        "bytes_out",
        "decoded",
        "drained",
        "encoded",
        "first_byte",
        "id",
        "number",
        "protocol",
        "received",
        "request",
        "status",
        "written",
    )

    def __init__(self, number: int, protocol: str, received: int) -> None:
        self.number = number
        self.protocol = protocol
        self.id = ""
        self.request = self.status = self.bytes_in = self.bytes_out = 0
        self.first_byte = self.received = self.body_done = received
        self.decoded = self.answered = self.encoded = self.written = self.drained = 0


@mypyc_attr(acyclic=True)
class RequestRow(Row):
    """One request to a model version."""

    __slots__ = (
        "batch",
        "batch_size",
        "cache_hit",
        "completion_tokens",
        "correlation",
        "deadline",
        "done",
        "exchange",
        "first_token",
        "id",
        "infer_done",
        "input_bytes",
        "input_done",
        "model",
        "number",
        "outcome",
        "output_bytes",
        "parent",
        "priority",
        "prompt_tokens",
        "queued",
        "reason",
        "received",
        "shape",
        "started",
        "tenant",
        "version",
    )

    def __init__(self) -> None:
        self.number = self.parent = self.exchange = self.batch = self.version = 0
        self.model = self.tenant = self.reason = self.shape = self.id = ""
        self.outcome = "unfinished"
        self.cache_hit = self.priority = self.batch_size = self.prompt_tokens = self.completion_tokens = 0
        self.correlation = self.input_bytes = self.output_bytes = 0
        self.received = self.queued = self.started = self.input_done = self.infer_done = self.done = 0
        self.first_token = self.deadline = 0


@mypyc_attr(acyclic=True)
class BatchRow(Row):
    """One execution."""

    __slots__ = (
        "ahead",
        "cpu_ns",
        "cpu_wait_ns",
        "failed",
        "formed",
        "infer_done",
        "input_done",
        "instance",
        "members",
        "model",
        "number",
        "released",
        "size",
        "started",
        "switches",
        "version",
        "waiting",
        "why_now",
    )

    def __init__(self) -> None:
        self.number = self.version = self.members = self.size = self.waiting = self.switches = 0
        self.model = self.instance = ""
        self.why_now = "single"
        self.ahead = self.failed = 0
        self.formed = self.started = self.input_done = self.infer_done = self.released = 0
        self.cpu_ns = self.cpu_wait_ns = 0
