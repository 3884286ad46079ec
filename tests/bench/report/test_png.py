"""The image of a certificate."""

from pathlib import Path

import pytest

from conch.base.errors import InvalidRequest
from conch.measure.bench.report.png import to_png, write_png
from tests.bench.report.samples import ab_certificate, certificate, hostile_certificate, s0_certificate

pytest.importorskip("matplotlib")


@pytest.mark.slow
@pytest.mark.parametrize("make", [ab_certificate, s0_certificate, lambda: certificate(8)])
def test_an_image_is_written(make, tmp_path: Path) -> None:
    write_png(make(), tmp_path / "run.png")
    content = (tmp_path / "run.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) < 300_000


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Glyph")
def test_names_are_not_read_as_mathematics() -> None:
    assert to_png(hostile_certificate())


def test_without_a_successful_request_there_is_no_image() -> None:
    with pytest.raises(InvalidRequest, match="no request was successful"):
        to_png(certificate())
