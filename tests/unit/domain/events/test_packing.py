"""Packed tables: any table comes back, rows that refer to others are small, and bytes of others are refused."""

import lzma

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conch.domain.events.packing import RowLink, pack, unpack

_DTYPE = np.dtype([("number", "<i8"), ("batch", "<i8"), ("kind", "<u1"), ("shape", "<u8"), ("at", "<i8"), ("n", "<i4")])
_EXTREMES = {kind: [np.iinfo(kind).min, np.iinfo(kind).max, 0, 1] for kind in ("<i8", "<u8", "<u1", "<i4")}


@given(rows=st.integers(0, 40), seed=st.integers(0, 1000), linked=st.booleans())
def test_any_table_comes_back(rows: int, seed: int, linked: bool) -> None:
    random = np.random.default_rng(seed)
    tables = [np.zeros(rows, _DTYPE) for _ in range(2)]
    for table in tables:
        for name in _DTYPE.names:
            table[name] = random.choice(np.array(_EXTREMES[_DTYPE[name].str.replace("|", "<")], _DTYPE[name]), rows)
    link = RowLink("batch", tables[1]) if linked else None
    description, data = pack(tables[0], link)
    assert (unpack(description, memoryview(data), link)[list(_DTYPE.names)] == tables[0]).all()


def test_times_of_linked_rows_cost_nothing() -> None:
    random = np.random.default_rng(1)
    batches = np.zeros(5000, _DTYPE)
    batches["number"] = np.arange(5000) + 1
    batches["at"] = random.integers(0, 2**40, 5000)
    requests = batches.copy()
    requests["batch"] = batches["number"]
    alone, linked = (len(lzma.compress(pack(requests, link)[1])) for link in (None, RowLink("batch", batches)))
    assert linked < alone / 20


@pytest.mark.parametrize(
    "change",
    [
        {"rows": 10**9},
        {"rows": -1},
        {"rows": "3"},
        {"columns": [{"name": "a", "type": "<i8", "base": "", "width": 0}]},
        {"columns": [{"name": "a", "type": "<i8", "base": "", "width": 9}]},
        {"columns": [{"name": "a", "type": "O", "base": "", "width": 1}]},
        {"columns": [{"name": "a", "type": "<i8", "base": "gone", "width": 1}]},
        {"columns": [{"name": "a", "type": "<i8", "base": "linked.number", "width": 1}]},
        {"columns": [{"name": "a"}]},
    ],
)
def test_other_descriptions_are_refused(change: dict[str, object]) -> None:
    description = {"rows": 3, "columns": [{"name": "a", "type": "<i8", "base": "", "width": 1}]}
    assert list(unpack(description, memoryview(b"\2\4\1"))["a"]) == [1, 2, -1]
    with pytest.raises((KeyError, TypeError, ValueError)):
        unpack({**description, **change}, memoryview(b"\2\4\1"))
