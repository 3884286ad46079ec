# Compiled by mypyc in wheels.
"""Compact forms of the frequent rows of the event log: fewer cache lines to write, and more rows in the same memory.

A line has differences of times and of numbers in 32 bits, and numbers for texts. Times fit up to two seconds after the
one before, sizes below 2 GiB. `Line.take` refuses a row with anything larger; its ring then keeps the row itself.
"""

from collections.abc import Callable, Mapping
from typing import Final, cast

from mypy_extensions import i16, i32, i64, mypyc_attr, u8

from conch.domain.events.layout import OUTCOMES, PROTOCOLS, WHY_NOW
from conch.domain.events.rows import BatchRow, ExchangeRow, RequestRow, Ring, Row

_OUTCOMES: Final = {text: code for code, text in enumerate(OUTCOMES)}
_PROTOCOLS: Final = {text: code for code, text in enumerate(PROTOCOLS)}
_WHY_NOW: Final = {text: code for code, text in enumerate(WHY_NOW)}
_MAX_TEXTS: Final = 1 << 15
_MIN_I32: Final = -(1 << 31)


class Texts:
    """Numbers the texts of a log's lines; "" is 0. It keeps 32,768 at most."""

    __slots__ = ("numbers", "texts")

    def __init__(self) -> None:
        self.texts = [""]
        self.numbers = {"": 0}

    def number(self, text: str) -> int:
        """Return the number of a text; -1 if there are too many."""
        number = self.numbers.get(text)
        if number is None:
            number = len(self.texts)
            if number >= _MAX_TEXTS:
                return -1
            self.numbers[text] = number
            self.texts.append(text)
        return number


class _Column:
    """The numbers of a column's texts. It knows that of the last one, because most rows have the text of the last."""

    __slots__ = ("_codes", "_number", "_text", "_texts")

    def __init__(self, texts: Texts | None = None, codes: Mapping[str, int] | None = None) -> None:
        self._texts = texts
        self._codes = codes
        self._text = ""
        self._number: i64 = -1

    def number(self, text: str) -> i64:
        """Return the number of a text; -1 if there are too many."""
        if text is not self._text or self._number < 0:
            self._text = text
            if self._codes is not None:
                self._number = self._codes[text]
            elif self._texts is not None:
                self._number = self._texts.number(text)
        return self._number


class Columns:
    """Columns of texts in the lines of a log."""

    __slots__ = ("instance", "model", "outcome", "protocol", "reason", "shape", "tenant", "texts", "why_now")

    def __init__(self) -> None:
        texts = Texts()
        self.texts = texts.texts
        self.model, self.instance, self.shape = _Column(texts), _Column(texts), _Column(texts)
        self.tenant, self.reason = _Column(texts), _Column(texts)
        self.outcome, self.protocol, self.why_now = (
            _Column(codes=_OUTCOMES),
            _Column(codes=_PROTOCOLS),
            _Column(codes=_WHY_NOW),
        )


@mypyc_attr(acyclic=True)
class Line(Row):
    """A row in compact form."""

    __slots__ = ()

    def take(self, row: Row, columns: Columns) -> bool:
        """Become the compact form of a row; return False for a row that has none, and change nothing."""
        raise NotImplementedError

    def row(self, texts: list[str]) -> Row:
        """Return the row."""
        raise NotImplementedError


class LineRing(Ring):
    """A ring that keeps rows in compact form."""

    __slots__ = ("_columns", "_new")

    def __init__(self, size: int, new: Callable[[], Line], columns: Columns) -> None:
        super().__init__(size)
        self._new = new
        self._columns = columns

    def add(self, row: Row) -> bool:
        index = self.written
        self.written = index + 1
        rows = self.rows
        if index < self.size:
            new = self._new()
            kept = not new.take(row, self._columns)
            rows.append(row if kept else new)
            return kept
        place = index % self.size
        oldest = rows[place]
        if isinstance(oldest, Line):
            if oldest.take(row, self._columns):
                return False
        else:
            new = self._new()
            if new.take(row, self._columns):
                rows[place] = new
                return False
        rows[place] = row
        return True

    def row(self, number: int) -> Row | None:
        row = super().row(number)
        return row.row(self._columns.texts) if isinstance(row, Line) else row


def _difference(time: i64, before: i64) -> i64:
    """Return what is stored of a time: its difference to the one before, plus 1; 0 for none, -1 for an earlier one."""
    return time - before + 1 or -1 if time else 0


def _times(before: int, *stored: int) -> list[int]:
    """Return times of what is stored: the difference of each to the one before that is not 0, plus 1; 0 for none."""
    times: list[int] = []
    for value in stored:
        time = value + before - 1 if value else 0
        before = time or before
        times.append(time)
    return times


# Attributes are in the order of their sizes, so that there are no gaps between them. Ranges are checked for many values
# at once: shifting keeps the sign, so negative numbers are out of range, too. An integer of more than 64 bits is a
# ValueError in compiled code.


@mypyc_attr(acyclic=True)
class RequestLine(Line):
    """A request without a first token or tokens, and with a deadline or a correlation at most."""

    __slots__ = (
        "_batch",
        "_batch_size",
        "_correlates",
        "_done",
        "_exchange",
        "_extra",
        "_hit",
        "_id",
        "_infer_done",
        "_input_bytes",
        "_input_done",
        "_model",
        "_number",
        "_outcome",
        "_output_bytes",
        "_parent",
        "_priority",
        "_queued",
        "_reason",
        "_received",
        "_shape",
        "_started",
        "_tenant",
        "_version",
    )

    def __init__(self) -> None:
        self._id = ""
        self._number: i64 = 0
        self._received: i64 = 0
        self._extra: i64 = 0  # the deadline or the correlation
        self._exchange: i64 = 0  # calls of frontend processes have numbers far from those of requests
        # Differences to `_number`.
        self._parent: i32 = 0
        self._batch: i32 = 0
        self._queued: i32 = 0
        self._started: i32 = 0
        self._input_done: i32 = 0
        self._infer_done: i32 = 0
        self._done: i32 = 0
        self._input_bytes: i32 = 0
        self._output_bytes: i32 = 0
        self._version: i16 = 0
        self._batch_size: i16 = 0
        self._priority: i16 = 0
        self._model: i16 = 0
        self._tenant: i16 = 0
        self._shape: i16 = 0
        self._reason: i16 = 0
        self._outcome: u8 = 0
        self._hit: u8 = 0
        self._correlates: u8 = 0

    def take(self, row: Row, columns: Columns) -> bool:
        row = cast("RequestRow", row)
        if row.first_token or row.prompt_tokens or row.completion_tokens or (row.deadline and row.correlation):
            return False
        try:
            number: i64 = row.number
            parent: i64 = row.parent
            exchange: i64 = row.exchange
            batch: i64 = row.batch
            received: i64 = row.received
            queued: i64 = row.queued
            started: i64 = row.started
            input_done: i64 = row.input_done
            infer_done: i64 = row.infer_done
            done: i64 = row.done
            input_bytes: i64 = row.input_bytes
            output_bytes: i64 = row.output_bytes
            version: i64 = row.version
            batch_size: i64 = row.batch_size
            priority: i64 = row.priority
            extra: i64 = row.correlation or row.deadline
        except (OverflowError, ValueError):
            return False
        if number and number in (parent, batch):  # a difference of 0 stands for none
            return False
        if parent:
            parent -= number
        if batch:
            batch -= number
        before = received
        queued, before = _difference(queued, before), queued or before
        started, before = _difference(started, before), started or before
        input_done, before = _difference(input_done, before), input_done or before
        infer_done, before = _difference(infer_done, before), infer_done or before
        done = _difference(done, before)
        model, tenant = columns.model.number(row.model), columns.tenant.number(row.tenant)
        shape, reason = columns.shape.number(row.shape), columns.reason.number(row.reason)
        if (
            (queued | started | input_done | infer_done | done | input_bytes | output_bytes) >> 31
            or (version | batch_size | priority | model | tenant | shape | reason) >> 15
            or (parent - _MIN_I32 | batch - _MIN_I32) >> 32
        ):
            return False
        self._number, self._received, self._extra = number, received, extra
        self._parent, self._exchange, self._batch = i32(parent), exchange, i32(batch)
        self._queued, self._started, self._input_done = i32(queued), i32(started), i32(input_done)
        self._infer_done, self._done = i32(infer_done), i32(done)
        self._input_bytes, self._output_bytes = i32(input_bytes), i32(output_bytes)
        self._version, self._batch_size, self._priority = i16(version), i16(batch_size), i16(priority)
        self._model, self._tenant, self._shape, self._reason = i16(model), i16(tenant), i16(shape), i16(reason)
        self._outcome = u8(columns.outcome.number(row.outcome))
        self._hit = 1 if row.cache_hit else 0
        self._correlates = 1 if row.correlation else 0
        self._id = row.id
        return True

    def row(self, texts: list[str]) -> Row:
        row = RequestRow()
        row.number = self._number
        row.parent = self._number + i64(self._parent) if self._parent else 0
        row.exchange = self._exchange
        row.batch = self._number + i64(self._batch) if self._batch else 0
        row.model, row.tenant, row.shape = texts[self._model], texts[self._tenant], texts[self._shape]
        row.reason = texts[self._reason]
        row.received = self._received
        row.queued, row.started, row.input_done, row.infer_done, row.done = _times(
            self._received, self._queued, self._started, self._input_done, self._infer_done, self._done
        )
        row.input_bytes, row.output_bytes = self._input_bytes, self._output_bytes
        row.version, row.batch_size, row.priority = self._version, self._batch_size, self._priority
        row.outcome, row.cache_hit = OUTCOMES[self._outcome], self._hit
        if self._correlates:
            row.correlation = self._extra
        else:
            row.deadline = self._extra
        row.id = self._id
        return row


@mypyc_attr(acyclic=True)
class ExecutionLine(Line):
    """An execution."""

    __slots__ = (
        "_ahead",
        "_cpu",
        "_cpu_wait",
        "_failed",
        "_formed",
        "_infer_done",
        "_input_done",
        "_instance",
        "_members",
        "_model",
        "_number",
        "_released",
        "_size",
        "_started",
        "_switches",
        "_version",
        "_waiting",
        "_why_now",
    )

    def __init__(self) -> None:
        self._number: i64 = 0
        self._formed: i64 = 0
        self._started: i32 = 0
        self._input_done: i32 = 0
        self._infer_done: i32 = 0
        self._released: i32 = 0
        self._cpu: i32 = 0
        self._cpu_wait: i32 = 0
        self._waiting: i32 = 0
        self._members: i16 = 0
        self._size: i16 = 0
        self._switches: i16 = 0
        self._version: i16 = 0
        self._model: i16 = 0
        self._instance: i16 = 0
        self._why_now: u8 = 0
        self._ahead: u8 = 0
        self._failed: u8 = 0

    def take(self, row: Row, columns: Columns) -> bool:
        row = cast("BatchRow", row)
        try:
            number: i64 = row.number
            formed: i64 = row.formed
            started: i64 = row.started
            input_done: i64 = row.input_done
            infer_done: i64 = row.infer_done
            released: i64 = row.released
            cpu: i64 = row.cpu_ns
            cpu_wait: i64 = row.cpu_wait_ns
            waiting: i64 = row.waiting
            members: i64 = row.members
            size: i64 = row.size
            switches: i64 = row.switches
            version: i64 = row.version
        except (OverflowError, ValueError):
            return False
        before = formed
        started, before = _difference(started, before), started or before
        input_done, before = _difference(input_done, before), input_done or before
        infer_done, before = _difference(infer_done, before), infer_done or before
        released = _difference(released, before)
        model, instance = columns.model.number(row.model), columns.instance.number(row.instance)
        if (started | input_done | infer_done | released | cpu | cpu_wait | waiting) >> 31 or (
            members | size | switches | version | model | instance
        ) >> 15:
            return False
        self._number, self._formed = number, formed
        self._started, self._input_done = i32(started), i32(input_done)
        self._infer_done, self._released = i32(infer_done), i32(released)
        self._cpu, self._cpu_wait, self._waiting = i32(cpu), i32(cpu_wait), i32(waiting)
        self._members, self._size, self._switches = i16(members), i16(size), i16(switches)
        self._version, self._model, self._instance = i16(version), i16(model), i16(instance)
        self._why_now = u8(columns.why_now.number(row.why_now))
        self._ahead = 1 if row.ahead else 0
        self._failed = 1 if row.failed else 0
        return True

    def row(self, texts: list[str]) -> Row:
        row = BatchRow()
        row.number, row.formed = self._number, self._formed
        row.started, row.input_done, row.infer_done, row.released = _times(
            self._formed, self._started, self._input_done, self._infer_done, self._released
        )
        row.cpu_ns, row.cpu_wait_ns, row.waiting = self._cpu, self._cpu_wait, self._waiting
        row.members, row.size, row.switches = self._members, self._size, self._switches
        row.version, row.model, row.instance = self._version, texts[self._model], texts[self._instance]
        row.why_now, row.ahead, row.failed = WHY_NOW[self._why_now], self._ahead, self._failed
        return row


@mypyc_attr(acyclic=True)
class ExchangeLine(Line):
    """A call of a client, as it is recorded: without what its request knows."""

    __slots__ = (
        "_body_done",
        "_bytes_in",
        "_bytes_out",
        "_drained",
        "_encoded",
        "_first_byte",
        "_id",
        "_number",
        "_protocol",
        "_received",
        "_status",
        "_written",
    )

    def __init__(self) -> None:
        self._id = ""
        self._number: i64 = 0
        self._first_byte: i64 = 0
        self._received: i32 = 0
        self._body_done: i32 = 0
        self._encoded: i32 = 0
        self._written: i32 = 0
        self._drained: i32 = 0
        self._bytes_in: i32 = 0
        self._bytes_out: i32 = 0
        self._status: i16 = 0
        self._protocol: u8 = 0

    def take(self, row: Row, columns: Columns) -> bool:
        row = cast("ExchangeRow", row)
        if row.request or row.decoded or row.answered:
            return False
        try:
            number: i64 = row.number
            first_byte: i64 = row.first_byte
            received: i64 = row.received
            body_done: i64 = row.body_done
            encoded: i64 = row.encoded
            written: i64 = row.written
            drained: i64 = row.drained
            bytes_in: i64 = row.bytes_in
            bytes_out: i64 = row.bytes_out
            status: i64 = row.status
        except (OverflowError, ValueError):
            return False
        before = first_byte
        received, before = _difference(received, before), received or before
        body_done, before = _difference(body_done, before), body_done or before
        encoded, before = _difference(encoded, before), encoded or before
        written, before = _difference(written, before), written or before
        drained = _difference(drained, before)
        if (received | body_done | encoded | written | drained | bytes_in | bytes_out) >> 31 or status >> 15:
            return False
        self._number, self._first_byte = number, first_byte
        self._received, self._body_done, self._encoded = i32(received), i32(body_done), i32(encoded)
        self._written, self._drained = i32(written), i32(drained)
        self._bytes_in, self._bytes_out, self._status = i32(bytes_in), i32(bytes_out), i16(status)
        self._protocol = u8(columns.protocol.number(row.protocol))
        self._id = row.id
        return True

    def row(self, texts: list[str]) -> Row:  # noqa: ARG002 - its texts are codes
        row = ExchangeRow(self._number, PROTOCOLS[self._protocol], 0)
        row.first_byte = self._first_byte
        row.received, row.body_done, row.encoded, row.written, row.drained = _times(
            self._first_byte, self._received, self._body_done, self._encoded, self._written, self._drained
        )
        row.bytes_in, row.bytes_out, row.status, row.id = self._bytes_in, self._bytes_out, self._status, self._id
        return row
