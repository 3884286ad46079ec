"""Certificates as files: exact, strict, atomic."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conch.base.errors import InvalidRequest
from conch.measure.bench.command import write_certificate
from conch.measure.bench.measurement import Estimate
from conch.measure.bench.report.certificate import SCHEMA_VERSION, from_json, read_certificate, to_json
from tests.measure.bench.report.samples import ab_certificate, certificate, hostile_certificate, s0_certificate

DOCUMENT = json.loads(to_json(certificate(1, requests=50)))


@pytest.mark.parametrize("make", [ab_certificate, hostile_certificate, s0_certificate, certificate])
def test_what_is_written_is_read(make, tmp_path: Path) -> None:
    written = make()
    write_certificate("json", written, tmp_path / "run.json")
    assert read_certificate(tmp_path / "run.json") == written


def test_floats_are_exact() -> None:
    value = 0.1 + 0.2
    usual = certificate(1, requests=50)
    read = from_json(
        to_json(replace(usual, measurements=(replace(usual.measurements[0], throughput=Estimate(value)),)))
    )
    assert read.measurements[0].throughput.value == value


def test_numbers_of_numpy_are_numbers() -> None:
    usual = certificate(1, requests=50)
    odd = replace(usual.measurements[0], window_s=np.float64(1.5), requests=np.int64(3))
    read = from_json(to_json(replace(usual, measurements=(odd,)))).measurements[0]
    assert (read.window_s, read.requests) == (1.5, 3)


def test_seconds_without_an_answer_are_null() -> None:
    usual = certificate(1, requests=50)
    series = {"p50": (0.1, math.nan)}
    content = to_json(replace(usual, measurements=(replace(usual.measurements[0], series=series),)))
    assert json.loads(content)["measurements"][0]["series"]["p50"] == [0.1, None]
    assert math.isnan(from_json(content).measurements[0].series["p50"][1])


def without(document: dict, *path) -> dict:
    copy = json.loads(json.dumps(document))
    parent = copy
    for key in path[:-1]:
        parent = parent[key]
    del parent[path[-1]]
    return copy


def with_value(document: dict, value: object, *path) -> dict:
    copy = json.loads(json.dumps(document))
    parent = copy
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    return copy


def test_documents_of_version_1_are_read() -> None:
    """They have no figures of responses."""
    document = from_json(
        json.dumps(with_value(without(DOCUMENT, "measurements", 0, "responses"), 1, "schema_version")).encode()
    )
    assert document.measurements[0].responses is None
    assert document.measurements[0].requests == 50


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], 'must be an object with "format": "conch-benchmark"'),
        ({}, 'must be an object with "format": "conch-benchmark"'),
        (with_value(DOCUMENT, "other", "format"), '"format": "conch-benchmark"'),
        (with_value(DOCUMENT, 0, "schema_version"), "schema_version must be an integer from 1 to"),
        (without(DOCUMENT, "schema_version"), "not None"),
        (with_value(DOCUMENT, True, "schema_version"), "not True"),
        (with_value(DOCUMENT, SCHEMA_VERSION + 1, "schema_version"), f"schema_version {SCHEMA_VERSION + 1} is newer"),
        (without(DOCUMENT, "target", "url"), "target lacks the field 'url'"),
        (with_value(DOCUMENT, 1, "target", "host"), "target has the unknown field 'host'"),
        (with_value(DOCUMENT, 1, "verdict"), "verdict must be a string, not 1"),
        (
            with_value(DOCUMENT, 1.5, "measurements", 0, "requests"),
            "measurements[0].requests must be an integer, not 1.5",
        ),
        (
            with_value(DOCUMENT, "x", "measurements", 0, "window_s"),
            'measurements[0].window_s must be a number, not "x"',
        ),
        (with_value(DOCUMENT, [1], "measurements", 0, "latency", "histogram", 0), "must be an array of 2"),
        (with_value(DOCUMENT, {}, "measurements"), "measurements must be an array, not {}"),
        (with_value(DOCUMENT, 3, "saturation"), "saturation must be an object, not 3"),
    ],
)
def test_what_is_wrong_is_named(document: object, message: str) -> None:
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        from_json(json.dumps(document).encode())
    assert message.replace("must be an array of 2", "must have 2 elements") in str(raised.value)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"<html></html>"])
def test_other_files_are_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(InvalidRequest, match="is not a certificate of conch bench"):
        read_certificate(tmp_path / "run.json")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="No such file"):
        read_certificate(tmp_path / "none.json")


FULL_DISK = """
import errno, resource, sys
from pathlib import Path
from conch.measure.bench.command import write_certificate
from tests.measure.bench.report.samples import ab_certificate

resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_certificate("json", ab_certificate(), Path(sys.argv[1]))
except OSError as error:
    assert error.errno == errno.EFBIG
else:
    raise AssertionError
"""


def test_a_full_disk_leaves_what_was_there(tmp_path: Path) -> None:
    """RLIMIT_FSIZE stands for a full disk: writing fails in the middle."""
    path = tmp_path / "run.json"
    path.write_text("before")
    subprocess.run([sys.executable, "-c", FULL_DISK, path], cwd=Path(__file__).parents[4], timeout=60, check=True)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_the_file_has_the_usual_permissions(tmp_path: Path) -> None:
    write_certificate("json", certificate(), tmp_path / "run.json")
    (tmp_path / "usual").touch()
    assert (tmp_path / "run.json").stat().st_mode == (tmp_path / "usual").stat().st_mode
