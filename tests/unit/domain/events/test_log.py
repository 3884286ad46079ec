"""The event log reads what it has written, finds requests, and makes a log or an error of any bytes."""

from contextlib import suppress

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conch.base.errors import InvalidRequest, NotFound
from conch.domain.events.layout import DTYPES, FORMAT, KINDS, NAME
from conch.domain.events.log import EventLog

REQUEST = {
    "number": 7,
    "batch": 3,
    "model": "detector",
    "version": 1,
    "outcome": "ok",
    "received": 1_000_000,
    "queued": 1_000_500,
    "done": 1_900_000,
}


def a_log(**header: object) -> EventLog:
    rows = {
        "requests": [REQUEST, {**REQUEST, "number": 9, "model": "other", "outcome": "error", "reason": "BACKEND"}],
        "batches": [{"number": 3, "model": "detector", "why_now": "delay over", "started": 5, "formed": 9}],
        "ids": [{"request": 7, "text": "abc"}, {"request": 9, "text": "abc"}, {"request": 8, "text": "gone"}],
    }
    return EventLog.of_rows(rows, monotonic_ns=2_000_000, wall_ns=10**18, **header)


DATA = a_log().to_bytes()


def same(log: EventLog, other: EventLog) -> bool:
    return (list(log.names), log.server, log.lost) == (list(other.names), other.server, other.lost) and all(
        np.array_equal(log.tables[kind], other.tables[kind]) for kind in KINDS
    )


def test_reads_what_it_has_written() -> None:
    log = a_log(overrun_before=17, lost={"requests": 3}, server={"conch": "1.0", "machine": {"cores": 2}})
    read = EventLog.of_bytes(log.to_bytes())
    assert same(read, log)
    assert (read.monotonic_ns, read.wall_ns, read.overrun_before) == (2_000_000, 10**18, 17)
    assert read.names[read.requests[1]["model"]] == "other"
    assert read.requests[1]["queued"] == 1_000_500
    assert KINDS["batches"][4].codes[read.batches[0]["why_now"]] == "delay over"


def test_a_coarse_resolution_rounds_times_and_keeps_what_has_not_come() -> None:
    request = EventLog.of_bytes(a_log().to_bytes(resolution_ns=300)).requests[0]
    assert [request[name] for name in ("number", "received", "queued", "started", "done")] == [
        7,
        999_900,
        1_000_500,
        0,
        1_899_900,
    ]


def test_an_empty_log() -> None:
    log = EventLog.of_bytes(EventLog().to_bytes())
    assert not any(len(table) for table in log.tables.values())


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_keeps_every_value(rows: int) -> None:
    random = np.random.default_rng(rows)
    tables = {}
    for kind, dtype in DTYPES.items():
        table = tables[kind] = np.zeros(rows, dtype)
        for column in KINDS[kind]:
            limits = np.iinfo(column.type)
            most = len(column.codes) - 1 if column.codes else 0 if column.meaning == NAME else min(limits.max, 2**61)
            least = 0 if limits.min == 0 else -(2**61)
            table[column.name] = random.choice([0, least, most, random.integers(least, most + 1)], rows)
    log = EventLog(tables=tables)
    assert same(EventLog.of_bytes(log.to_bytes()), log)


def test_values_beyond_the_range_of_their_column_are_clamped() -> None:
    row = {"members": -4, "size": 2**40, "cpu_ns": 2**70, "formed": -(2**70), "switches": 5}
    batch = EventLog.of_rows({"batches": [row]}).batches[0]
    assert (batch["members"], batch["size"], batch["switches"]) == (0, 2**32 - 1, 5)
    assert (batch["cpu_ns"], batch["formed"]) == (2**63 - 1, -(2**63))


def test_finds_the_newest_request_with_an_id() -> None:
    assert a_log().find("#7") == 7
    assert a_log().find("abc") == 9


@pytest.mark.parametrize("text", ["#8", "gone", "detector", "", "#", "unknown", "#99999999999999999999"])
def test_an_unknown_id_is_an_error_that_says_what_may_be_missing(text: str) -> None:
    with pytest.raises(NotFound, match=f"^no request '{text}' in the event log: it holds 2 requests$"):
        a_log().find(text)
    with pytest.raises(NotFound, match="overwritten"):
        a_log(overrun_before=5).find(text)


def test_the_wall_clock_is_that_of_the_reading() -> None:
    assert a_log().wall(1_500_000) == 10**18 - 500_000


def test_a_newer_log_is_refused_by_name() -> None:
    data = a_log().to_bytes().replace(b"conch events %d" % FORMAT, b"conch events %d" % (FORMAT + 1))
    with pytest.raises(InvalidRequest, match=f"written by a newer version of Conch: its format is {FORMAT + 1}"):
        EventLog.of_bytes(data)


@pytest.mark.parametrize("size", [0, 5, 17, 100, -1])
def test_a_log_that_is_cut_short_is_refused(size: int) -> None:
    with pytest.raises(InvalidRequest, match=r"cut short|not an event log"):
        EventLog.of_bytes(a_log().to_bytes()[:size])


def with_header(change: object) -> bytes:
    first, rest = a_log().to_bytes().split(b"\n", 1)
    size = int(first.split()[-1])
    header = orjson.loads(rest[:size])
    change(header)  # type: ignore[operator]
    written = orjson.dumps(header)
    return b"conch events %d %d\n%b%b" % (FORMAT, len(written), written, rest[size:])


def _column(name: str, type_: str) -> dict[str, object]:
    return {"name": name, "type": type_, "base": "", "width": 0}


def test_columns_of_other_versions() -> None:
    """A column that this version does not know is skipped; one that is missing is 0."""

    def rename(header: dict[str, dict[str, dict[str, list[dict[str, str]]]]]) -> None:
        for column in header["tables"]["requests"]["columns"]:
            column.update({key: "later" for key in ("name", "base") if column[key] == "done"})

    log = EventLog.of_bytes(with_header(rename))
    assert list(log.requests["done"]) == [0, 0]
    assert list(log.requests["queued"]) == [1_000_500] * 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda header: header.pop("names"), "names"),
        (lambda header: header["names"].clear(), "names"),
        (lambda header: header["names"].pop(), "out of range"),
        (lambda header: header.update(tables=[]), "header"),
        (lambda header: header.update(lost={"requests": "x"}), "integers"),
        (lambda header: header.update(server=3), "server"),
        (lambda header: header.update(resolution_ns=0), "resolution_ns"),
        (lambda header: header["tables"]["requests"].update(rows=10**12), "rows"),
        (lambda header: header["tables"]["requests"].update(rows=3), "cut short"),
        (lambda header: header["tables"]["requests"].update(columns=[], rows=2**27), "too many"),
        # Unpacking takes eight bytes for each of one byte, in several copies.
        (
            lambda header: header["tables"]["requests"].update(
                rows=2**25, columns=[{"name": "x", "type": "|i1", "base": "", "width": 1}]
            ),
            "too many",
        ),
        (lambda header: header["tables"]["requests"]["columns"].append(_column("x", "O")), "not of integers"),
        (lambda header: header["tables"]["requests"]["columns"].append(_column("x", "no")), "'no'"),
        (lambda header: header["tables"]["requests"]["columns"].append(_column("x", ",i8")), "not of integers: ',i8'"),
        (lambda header: header["tables"]["requests"]["columns"].append(_column("done", "<i8")), "more than once"),
        (lambda header: header["tables"]["requests"]["columns"][4].update(base="linked.gone"), "gone"),
        (lambda header: header["tables"]["requests"].update(link=["batch", "gone"]), "gone"),
    ],
)
def test_damaged_headers_are_refused(change: object, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        EventLog.of_bytes(with_header(change))


@given(st.binary(max_size=200), st.integers(0, len(DATA)), st.booleans())
def test_any_bytes_become_a_log_or_an_error(noise: bytes, place: int, keep: bool) -> None:
    with suppress(InvalidRequest):
        EventLog.of_bytes(DATA[:place] + noise + DATA[place + len(noise) * keep :])


@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        ("requests", [{"number": 7, "parent": 8}, {"number": 8, "parent": 7}]),
        ("requests", [{"number": 7, "parent": 6}, {"number": 7, "parent": 6}]),
        ("requests", [{"number": 0}]),
        ("requests", [{"number": 1, "done": 2**63 - 1}]),
        ("pauses", [{"started": -1, "ended": 5}]),
    ],
)
def test_a_log_that_no_server_writes_is_damaged(kind: str, rows: list[dict[str, int]]) -> None:
    with pytest.raises(InvalidRequest, match="the event log is damaged"):
        EventLog.of_rows({kind: rows}).checked()
