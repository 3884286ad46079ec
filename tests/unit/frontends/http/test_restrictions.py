import pytest

from conch.errors import ConfigError
from conch.frontends.http_message import HttpRequest
from conch.frontends.http_restrictions import Restrictions


def request(*fields: tuple[bytes, bytes]) -> HttpRequest:
    return HttpRequest(b"GET", "/", list(fields))


def test_each_category_asks_for_its_header():
    restrictions = Restrictions.parse(["health:Key=a=b", "metadata,statistics:Other=x"])
    assert restrictions.violation("health", request((b"KEY", b"a=b"))) is None
    assert restrictions.violation("statistics", request((b"Key", b"a=b"))) is not None
    assert restrictions.violation("inference", request()) is None


@pytest.mark.parametrize("value", ["health", "health:key", "health:=x", "nonsense:key=x", "health,health:key=x"])
def test_values_that_say_nothing(value):
    with pytest.raises(ConfigError, match="restricted API"):
        Restrictions.parse([value])
