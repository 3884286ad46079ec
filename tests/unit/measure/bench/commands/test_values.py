from argparse import ArgumentTypeError
from collections.abc import Callable

import pytest

from conch.base.command_line.option_types import amount, concurrencies, duration, fraction, rate_list, slo, warm_up
from conch.measure.bench.plan import Precision, precision


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (concurrencies, "1,5,30", (1, 5, 30)),
        (concurrencies, "1:32:x2", (1, 2, 4, 8, 16, 32)),
        (concurrencies, "1:10:3", (1, 4, 7, 10)),
        (concurrencies, "2:4", (2, 3, 4)),
        (fraction, "99%", 0.99),
        (fraction, "0.5", 0.5),
        (slo, "ttft:200ms,itl:30ms,latency:1s", {"ttft": 0.2, "itl": 0.03, "latency": 1.0}),
        (precision, "p99 ±5%", Precision(99.0, 0.05)),
        (precision, "p99.9 +-2 %", Precision(99.9, 0.02)),
        (warm_up, "auto", None),
        (duration, "500us", 5e-4),
        (warm_up, "2s", 2.0),
        (amount, "128", (128, 0)),
        (amount, "128±32", (128, 32)),
        (rate_list, "100:1600:x2", "100:1600:x2"),
    ],
)
def test_valid_values(parse: Callable[[str], object], text: str, value: object) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (concurrencies, "0"),
        (concurrencies, "1,,2"),
        (concurrencies, "8:1"),
        (concurrencies, "1:8:x1"),
        (concurrencies, "1:8:0"),
        (concurrencies, "1:1000000"),
        (fraction, "0"),
        (fraction, "101%"),
        (slo, "tpot:3ms"),
        (slo, "latency"),
        (slo, "latency:fast"),
        (precision, "99 ±5%"),
        (precision, "p100 ±5%"),
        (duration, "5x"),
        (warm_up, "soon"),
        (amount, "0"),
        (amount, "1-2"),
        (rate_list, "many"),
    ],
)
def test_invalid_values_say_what_is_expected(parse: Callable[[str], object], text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="not"):
        parse(text)
