"""Command lines and URLs without their secrets."""

import pytest

from conch.measure.bench.report.certificate import public_command, public_url


@pytest.mark.parametrize(
    ("words", "public"),
    [
        (["--api-key", "S3CRET"], ["--api-key", "***"]),
        (["--api-key=S3CRET"], ["--api-key=***"]),
        (["--api-key-file", "key.txt"], ["--api-key-file", "key.txt"]),
        (["--prompt-tokens", "128"], ["--prompt-tokens", "128"]),
        (["-H", "Authorization: Bearer S3CRET"], ["-H", "Authorization: ***"]),
        (["--header=X-Api-Key: S3CRET"], ["--header=X-Api-Key: ***"]),
        (["https://me:S3CRET@host:8000/v1?key=S3CRET"], ["https://host:8000/v1"]),
        (["--metrics-url=http://me:S3CRET@host/metrics"], ["--metrics-url=http://host/metrics"]),
        (["--until", "p99 ±5%"], ["--until", "p99 ±5%"]),
    ],
)
def test_secrets_are_replaced(words: list[str], public: list[str]) -> None:
    assert list(public_command(words)) == public


def test_a_host_without_a_scheme_keeps_its_port() -> None:
    assert public_url("me:S3CRET@host:8000") == "host:8000"
