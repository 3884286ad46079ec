"""Packed names: any name comes back as it was, ids of 128 bits take 16 bytes, and other forms are refused."""

import re
import uuid

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conch.base.errors import InvalidRequest
from conch.domain.events.log import EventLog
from conch.domain.events.packing import pack_ids, packed_id_bytes, unpack_ids

_NAMES = st.lists(
    st.one_of(
        st.uuids().map(str),
        st.uuids().map(lambda id_: id_.hex),
        st.uuids().map(lambda id_: str(id_).upper()),
        st.text("0123456789abcdef-", max_size=40),
        st.text(max_size=5),
    )
)


@given(_NAMES)
def test_any_names_come_back(names: list[str]) -> None:
    texts, data = pack_ids(names)
    assert len(data) == packed_id_bytes(texts)
    assert unpack_ids(texts, memoryview(data)) == names


@pytest.mark.parametrize("written", [str, lambda id_: id_.hex])
def test_an_id_takes_16_bytes(written: type[str]) -> None:
    texts, data = pack_ids(["", written(uuid.UUID(int=5)), "detector"])
    assert isinstance(texts[1], int)
    assert texts[::2] == ["", "detector"]
    assert data == bytes([*[0] * 15, 5])


@pytest.mark.parametrize("name", [0, 3, -1, 1.0, True, None, []])
def test_other_forms_are_refused(name: object) -> None:
    with pytest.raises(ValueError, match="forms of ids"):
        packed_id_bytes(["", name])


def of_format_1(log: EventLog) -> bytes:
    """The file form of a log without rows before ids were packed: all names are texts."""
    first, _, rest = log.to_bytes().partition(b"\n")
    size = int(first.split()[-1])
    header = orjson.dumps({**orjson.loads(rest[:size]), "names": list(log.names)})
    return b"conch events 1 %d\n" % len(header) + header


def test_a_log_of_the_first_format_is_read() -> None:
    log = EventLog(names=["", str(uuid.uuid4()), uuid.uuid4().hex])
    assert EventLog.of_bytes(of_format_1(log)).names == log.names
    assert EventLog.of_bytes(log.to_bytes()).names == log.names


def test_missing_ids_are_a_log_that_is_cut_short() -> None:
    data = EventLog(names=["", str(uuid.uuid4()), uuid.uuid4().hex]).to_bytes()
    with pytest.raises(InvalidRequest, match=re.escape(f"cut short: it has {len(data) - 1} bytes")):
        EventLog.of_bytes(data[:-1])
