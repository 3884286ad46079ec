"""The token rate of `conch chat`."""

import pytest

from conch.clients.openai_client import TokenRate


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
    for each in times:
        pace.add(each)
    assert pace.rate(tokens) == (None if rate is None else pytest.approx(rate, rel=0.01))
