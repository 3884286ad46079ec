"""The client of `conch chat`: its token rate and its messages about URLs."""

import pytest

from conch.base.errors import InvalidRequest
from conch.clients.openai_client import OpenAIClient, TokenRate


@pytest.mark.parametrize(
    ("times", "tokens", "rate"),
    [
        ([1.0, 1.1, 1.2, 1.3, 1.4], 5, 10),  # four tokens in 0.4 s
        ([1.0, 1.0001, 1.0002, 1.0003], 4, 4),  # all were waiting: over the whole time
        ([2.0, 2.0001, 2.0002, 2.1, 2.2], 5, 10),  # three were waiting, two came in 0.2 s
        ([1.0, 1.1], 2, None),
        ([], 5, None),
        ([1.0, 1.5, 2.0], 9, 6),  # several tokens to a piece
    ],
)
def test_the_rate(times: list[float], tokens: int, rate: float | None) -> None:
    pace = TokenRate()
    for duration in times:
        pace.add(duration)
    assert pace.rate(tokens) == (None if rate is None else pytest.approx(rate, rel=0.01))


@pytest.mark.parametrize(
    ("url", "example"),
    [
        ("localhost:8000", "http://localhost:8000/v1"),
        ("10.0.0.7:9000/", "http://10.0.0.7:9000/v1"),
        ("ftp://host/v1", "http://localhost:8000/v1"),
    ],
)
def test_an_invalid_url_is_answered_with_a_valid_one(url: str, example: str) -> None:
    with pytest.raises(InvalidRequest, match=f"'{url}' is not a valid API URL: expected one such as {example}$"):
        OpenAIClient(url)
