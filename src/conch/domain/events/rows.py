# Compiled by mypyc in wheels.
"""Rings of rows of the event log, and the row of a client's call, which protocols and frontends fill together."""

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

    def reused(self) -> Row | None:
        """Return the oldest row, to be overwritten; None while there is room for another."""
        index = self.written
        self.written = index + 1
        if index < self.size:
            return None
        return self.rows[index % self.size]

    def add(self, row: Row) -> None:
        """Add a new row instead of reusing the oldest."""
        index = self.written
        self.written = index + 1
        if index < self.size:
            self.rows.append(row)
        else:
            self.rows[index % self.size] = row

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
