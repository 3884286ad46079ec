"""Limits from documents: what is read, and what is refused with which words."""

import pytest

from conch.base.errors import ConfigError
from conch.domain.limits import (
    UNLIMITED,
    LimitKey,
    Quantity,
    Subject,
    describe,
    read_limits,
    read_limits_text,
    read_per_second,
)

REQUESTS, TOKENS = Quantity.REQUESTS, Quantity.TOKENS


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("80", 80),
        (" 80 ", 80),
        (80, 80),
        (80.0, 80),
        ("1e3", 1000),
        ("1e9", 10**9),
        (1e9, 10**9),
        ("0", 0),
        ("+5", 5),
        ("unlimited", UNLIMITED),
    ],
)
def test_numbers_per_second(value: object, expected: int) -> None:
    assert read_per_second(value, "x") == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("80qps", "max_qps: '80qps' is not a number per second; write 80"),
        ("-1", "'-1' is negative; expected 0, which refuses everything, or more"),
        (-1, "-1 is negative"),
        ("1e10", "'1e10' exceeds the maximum of 1000000000 per second"),
        ("1e999999", "exceeds the maximum"),
        ("9" * 40, "is not a number per second"),
        ("0.5", "'0.5' is not a whole number per second"),
        ("nan", "'nan' is not a number per second"),
        (float("nan"), "is not a number per second"),
        (float("inf"), "is not a number per second"),
        ("", "'' is not a number per second; write 80"),
        (True, "True is not a number per second"),
        (None, "None is not a number per second"),
        ([80], "is not a number per second"),
        ("٨٠", "is not a number per second"),
        ("80\x00", "is not a number per second"),
        ("x" * 10_000, "is not a number per second"),
    ],
)
def test_what_is_not_a_number_per_second_is_refused_with_a_remedy(value: object, message: str) -> None:
    with pytest.raises(ConfigError, match="max_qps: ") as raised:
        read_per_second(value, "max_qps")
    assert message in raised.value.message
    assert len(raised.value.message) < 300


def test_a_document_and_its_description_are_the_same() -> None:
    text = """
    limits:
      - {model: detector, version: 2, tenant: acme, requests_per_second: 80, tokens_per_second: 1e3, enforced: true}
      - {model: "*", requests_per_second: 100}
      - {tenant: "*", requests_per_second: unlimited}
      - {requests_per_second: 0, enforced: true}
    """
    limits = read_limits_text(text, "file")
    assert limits == {
        LimitKey(Subject("detector", "2", "acme"), REQUESTS, True): 80,
        LimitKey(Subject("detector", "2", "acme"), TOKENS, True): 1000,
        LimitKey(Subject("*"), REQUESTS, False): 100,
        LimitKey(Subject(tenant="*"), REQUESTS, False): UNLIMITED,
        LimitKey(Subject(), REQUESTS, True): 0,
    }
    assert read_limits({"limits": describe(limits)}, "again") == limits


@pytest.mark.parametrize("text", ["", "limits:", "limits: []", "# nothing"])
def test_an_empty_document_has_no_limits(text: str) -> None:
    assert read_limits_text(text, "file") == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("limits: 3", "'limits' must be a list, got 3"),
        ("- 3", "expected one key 'limits'"),
        ("limit: []", "expected one key 'limits'"),
        ("limits: [3]", "line 1 of file: limit 1 must be a mapping"),
        (
            "limits:\n  - {model: m, requests_per_second: 1}\n  - {model: m, qps: 1}",
            "line 3 of file: limit 2: unknown key",
        ),
        ("limits: [{model: m}]", "limit 1 has none of requests_per_second, tokens_per_second, weight"),
        ("limits: [{qps: 1}]", "limit 1: unknown key 'qps', expected one of model, version"),
        ("limits: [{version: 1, requests_per_second: 1}]", "'version' needs 'model'"),
        ("limits: [{model: m, version: new, requests_per_second: 1}]", "'version' must be a number"),
        ("limits: [{model: 3, requests_per_second: 1}]", "'model' must be a name"),
        ("limits: [{requests_per_second: 1, enforced: 1}]", "'enforced' must be true or false, got 1"),
        ("limits: [{requests_per_second: 80qps}]", "limit 1: 'requests_per_second': '80qps' is not a number"),
        ("limits: [{requests_per_second: 1}, {requests_per_second: 2}]", "limit 2 repeats a soft requests_per_second"),
        ("limits: [{weight: 2}]", "limit 1: 'weight' needs 'tenant'"),
        ("limits: [{tenant: a, weight: 2, enforced: true}]", "limit 1: 'weight' needs 'tenant'"),
        ("limits: [{tenant: a, weight: 0}]", "limit 1: 'weight' must be a whole number from 1 to 1000, got 0"),
        ("limits: [{tenant: a, weight: unlimited}]", "limit 1: 'weight' must be a whole number"),
        ("limits:\n  - {model: [}", "line 2 of file: invalid YAML"),
        ("\tx", "invalid YAML"),
        ("a: &a [*a]", "expected one key 'limits'"),
        ("limits: [" + "[" * 1000, "invalid YAML"),
    ],
)
def test_errors_name_place_and_remedy(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_limits_text(text, "file")
    assert message in raised.value.message
