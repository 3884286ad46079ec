"""Bundles survive being cut, refuse newer versions and bombs, and never raise anything but InvalidRequest."""

import io
import subprocess
import tarfile
from pathlib import Path

import orjson
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conch.base.archives import zstd_tar
from conch.base.errors import InvalidRequest
from conch.domain.events.bundle import FORMAT, Bundle, is_bundle
from conch.domain.events.log import EventLog
from conch.domain.events.merge import pieces


def _log(first: int, last: int) -> EventLog:
    rows = [
        {"number": number, "model": f"m{number % 3}", "received": 1000 * number, "done": 1000 * number + 400,
         "outcome": "ok", "batch": number}
        for number in range(first, last)
    ]  # fmt: skip
    return EventLog.of_rows({"requests": rows}, monotonic_ns=1000 * last, wall_ns=10**18)


_BUNDLE = Bundle(
    {"id": "20261124-120000", "reason": "p99"},
    (_log(1, 200), _log(200, 400)),
    metrics="nv_inference_count 1\n",
    models={"m0": {"digest": "sha256:ab", "config": {"name": "m0"}}},
    limits={"rules": []},
    environment={"python": "3.12"},
    log_lines="I1124 a\nW1124 b\n",
    requests=({"number": 1, "inputs": []},),
)
_DATA = _BUNDLE.to_bytes()


def _read(folder: Path, data: bytes) -> Bundle:
    path = folder / "x.conch.tar.zst"
    path.write_bytes(data)
    return Bundle.read(path)


def test_a_bundle_is_read_as_it_was_written(tmp_path: Path) -> None:
    bundle = _read(tmp_path, _DATA)
    assert is_bundle(tmp_path / "x.conch.tar.zst")
    assert bundle.manifest["reason"] == "p99"
    assert (bundle.metrics, bundle.log_lines) == (_BUNDLE.metrics, _BUNDLE.log_lines)
    assert (bundle.models, bundle.limits, bundle.environment) == (
        _BUNDLE.models,
        _BUNDLE.limits,
        _BUNDLE.environment,
    )
    assert bundle.requests == _BUNDLE.requests
    assert list(bundle.log.requests["number"]) == list(range(1, 400))
    assert not bundle.missing


def test_tar_and_zstd_list_a_bundle(tmp_path: Path) -> None:
    (tmp_path / "x.tar.zst").write_bytes(_DATA)
    listed = subprocess.run(
        ["tar", "-tf", "-"], input=zstandard.decompress(_DATA, max_output_size=1 << 24), capture_output=True, check=True
    )
    assert listed.stdout.decode().split() == ["manifest.json", *_BUNDLE_MEMBERS]


_BUNDLE_MEMBERS = ["environment.json", "models.json", "limits.json", "metrics.txt", "log.txt", "requests.jsonl",
                   "events/0000", "events/0001"]  # fmt: skip


def test_a_bundle_that_is_cut_short_keeps_what_is_before_the_cut(tmp_path: Path) -> None:
    held = set()
    for end in range(0, len(_DATA), 7):
        try:
            bundle = _read(tmp_path, _DATA[:end])
        except InvalidRequest:
            continue
        assert bundle.missing or end > len(_DATA) - 16  # of the checksum at the end, nothing else is missing
        if bundle.missing and end < len(_DATA) - 16:
            assert "cut short" in bundle.missing[0]
            assert "events/0001" in bundle.missing[0]
        held.add(len(bundle.log.requests))
    assert held - {399} == {0, 199}


def test_what_was_missing_when_it_was_made_is_said(tmp_path: Path) -> None:
    data = Bundle({"id": "1"}, missing=("12 requests before it: the ring was overrun",)).to_bytes()
    assert _read(tmp_path, data).missing == ("12 requests before it: the ring was overrun",)


def test_a_newer_version_is_refused_by_its_number(tmp_path: Path) -> None:
    manifest = {"kind": "conch incident bundle", "format": FORMAT + 1}
    with pytest.raises(
        InvalidRequest, match=rf"newer version of Conch: the format of the bundle is {FORMAT + 1}, this"
    ):
        _read(tmp_path, zstd_tar([("manifest.json", orjson.dumps(manifest))]))


def test_other_files_are_refused(tmp_path: Path) -> None:
    for data in (b"", b"{}", zstd_tar([("a", b"b")]), zstd_tar([("manifest.json", b"[]")]), zstandard.compress(b"x")):
        with pytest.raises(InvalidRequest, match="not an incident bundle"):
            _read(tmp_path, data)
    with pytest.raises(InvalidRequest, match="cannot read"):
        Bundle.read(tmp_path / "missing")


def test_a_bomb_is_refused(tmp_path: Path) -> None:
    manifest = {"kind": "conch incident bundle", "format": FORMAT}
    packed = io.BytesIO()
    with (
        zstandard.ZstdCompressor().stream_writer(packed, closefd=False) as stream,
        tarfile.open(fileobj=stream, mode="w|") as archive,
    ):
        head = orjson.dumps(manifest)
        for name, size in (("manifest.json", len(head)), ("events/0000", 65 << 20)):
            header = tarfile.TarInfo(name)
            header.size = size
            archive.addfile(header, io.BytesIO(head if size == len(head) else bytes(size)))
    with pytest.raises(InvalidRequest, match="expands to more than"):
        _read(tmp_path, packed.getvalue())


def test_damaged_parts_are_named_and_the_others_used(tmp_path: Path) -> None:
    manifest = {"kind": "conch incident bundle", "format": FORMAT, "members": ["log.txt"]}
    data = zstd_tar(
        [
            ("manifest.json", orjson.dumps(manifest)),
            ("models.json", b"[1"),
            ("log.txt", b"\xff\n"),
            ("requests.jsonl", b'{"number": 1}\n}\n'),
            ("events/0000", b"conch events 1 5\n{}"),
        ]
    )
    bundle = _read(tmp_path, data)
    assert bundle.log_lines == "\ufffd\n"
    assert bundle.requests == ({"number": 1},)
    assert {text.split(":")[0] for text in bundle.missing} == {
        "models.json is damaged",
        "events/0000",
        "requests.jsonl",
    }


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, len(_DATA) - 1), value=st.integers(0, 255))
def test_any_damaged_byte_is_survived(tmp_path: Path, at: int, value: int) -> None:
    data = bytearray(_DATA)
    data[at] = value
    try:
        bundle = _read(tmp_path, bytes(data))
    except InvalidRequest:
        return
    assert len(bundle.log.requests) <= 399


def test_pieces_are_merged_to_the_whole() -> None:
    whole = EventLog.of_rows(
        {"requests": [{"number": number, "done": number} for number in range(1, 120_001)]}, monotonic_ns=1
    )
    parts = tuple(pieces(whole))
    assert [len(part.requests) for part in parts] == [40_000] * 3
    assert (Bundle(logs=parts).log.requests == whole.requests).all()


def test_json_that_fills_memory_is_refused(tmp_path: Path) -> None:
    manifest = orjson.dumps({"kind": "conch incident bundle", "format": FORMAT})
    models = b'{"a":[' + b"{}," * 5_000_001 + b"{}]}"
    with pytest.raises(InvalidRequest, match=r"'models\.json' has more than 10000000 values"):
        _read(tmp_path, zstd_tar([("manifest.json", manifest), ("models.json", models)]))


def test_events_that_no_server_writes_are_left_out(tmp_path: Path) -> None:
    cycle = EventLog.of_rows({"requests": [{"number": 1, "parent": 2}, {"number": 2, "parent": 1}]})
    bundle = _read(tmp_path, Bundle({"id": "1"}, (_log(1, 200), cycle)).to_bytes())
    assert len(bundle.log.requests) == 199
    assert "events/0001: the event log is damaged" in bundle.missing[0]
