"""`--http-restricted-api`: groups of endpoints that answer only to clients who send a secret header."""

import hmac
from collections.abc import Iterable, Mapping

from conch.errors import ConfigError
from conch.frontends.http_message import HttpRequest

CATEGORIES = frozenset(
    {
        "health",
        "metadata",
        "inference",
        "shared-memory",
        "model-config",
        "model-repository",
        "statistics",
        "trace",
        "logging",
    }
)


class Restrictions:
    """Which header each restricted group asks for."""

    def __init__(self, required: Mapping[str, tuple[str, str]]) -> None:
        """Assign: category → (header name, value)."""
        self._required = {
            category: (name, name.lower().encode(), value.encode()) for category, (name, value) in required.items()
        }

    def __bool__(self) -> bool:
        return bool(self._required)

    @classmethod
    def parse(cls, values: Iterable[str]) -> "Restrictions":
        """Read values of the form `<category>[,<category>…]:<header>=<value>`. Raises ConfigError."""
        required: dict[str, tuple[str, str]] = {}
        for value in values:
            categories, colon, pair = value.partition(":")
            name, equals, secret = pair.partition("=")
            if not (colon and equals and name):
                raise ConfigError(f"restricted API '{value}' is not of the form <category>,…:<header>=<value>")
            for category in categories.split(","):
                if category not in CATEGORIES:
                    raise ConfigError(f"unknown restricted API '{category}'; there are {', '.join(sorted(CATEGORIES))}")
                if category in required:
                    raise ConfigError(f"restricted API '{category}' is given more than once")
                required[category] = (name, secret)
        return cls(required)

    def violation(self, category: str, request: HttpRequest) -> str | None:
        """Return what to tell a client that may not use this group, None if it may."""
        required = self._required.get(category)
        if required is None:
            return None
        name, key, secret = required
        # Comparing in constant time tells nobody how much of a guess was right.
        if hmac.compare_digest(request.headers.get(key, b""), secret):
            return None
        return f"This API is restricted, expecting header '{name}'"
