"""Restricted categories: what is asked for, of whom, and which settings say nothing."""

import pytest

from conch.base.errors import ConfigError
from conch.protocols.access.restrictions import Restrictions


def test_each_category_asks_for_its_header():
    restrictions = Restrictions(["health:Key=a=b", "metadata,statistics:Other=x"])
    assert restrictions.missing_header("health", {"key": b"a=b"}.get) is None
    assert restrictions.missing_header("statistics", {"key": b"a=b", "other": b"y"}.get) == "Other"
    assert restrictions.missing_header("inference", lambda key: b"") is None


def test_a_prefix_belongs_to_the_name_that_clients_send():
    restrictions = Restrictions(["health:Key=x"], prefix="triton-grpc-protocol-")
    assert restrictions.missing_header("health", {"triton-grpc-protocol-key": b"x"}.get) is None
    assert restrictions.missing_header("health", lambda key: b"") == "triton-grpc-protocol-Key"


def test_without_values_nothing_is_restricted():
    assert not Restrictions()


@pytest.mark.parametrize(
    "value", ["health", "health:key", "health:=x", "health:key=", "nonsense:key=x", "health,health:key=x"]
)
def test_values_that_say_nothing(value):
    with pytest.raises(ConfigError, match="--http-restricted-api"):
        Restrictions([value], flag="--http-restricted-api")


def test_messages_keep_the_secret():
    with pytest.raises(ConfigError) as caught:
        Restrictions(["nonsense:key=sesame"], flag="--f")
    assert "sesame" not in str(caught.value)


@pytest.mark.parametrize(("flag", "prefix", "kind"), [("--h", "", "api"), ("--g", "triton-grpc-protocol-", "protocol")])
def test_messages_have_the_words_of_triton(flag: str, prefix: str, kind: str) -> None:
    with pytest.raises(
        ConfigError, match=f"^unknown restricted {kind} 'nonsense' in {flag}; expected one of debug, health, "
    ):
        Restrictions(["nonsense:key=x"], flag=flag, prefix=prefix)
    text = f"^restricted {kind} 'health' can not be specified in multiple config groups of {flag}$"
    for values in (["health:key=x", "health:key=y"], ["health,health:key=x"]):
        with pytest.raises(ConfigError, match=text):
            Restrictions(values, flag=flag, prefix=prefix)
