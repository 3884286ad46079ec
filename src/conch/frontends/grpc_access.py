"""`--grpc-restricted-protocol=<categories>:<key>=<value>`: groups of calls that only those may make who know a secret.

As with Triton the secret is expected in the metadata under `triton-grpc-protocol-<key>`.
"""

import hmac
from collections.abc import Iterable
from typing import NamedTuple

from conch.errors import ConfigError, Unavailable

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
_KEY_PREFIX = "triton-grpc-protocol-"


class _Secret(NamedTuple):
    key: str
    value: bytes


class RestrictedProtocols:
    """Which categories are restricted, and by what."""

    def __init__(self, restrictions: Iterable[str]) -> None:
        """Read `<category>,<category>:<key>=<value>` texts. Raises ConfigError for one that is none."""
        self._secrets: dict[str, _Secret] = {}
        for restriction in restrictions:
            self._add(restriction)

    def _add(self, restriction: str) -> None:
        categories, colon, pair = restriction.partition(":")
        key, equals, value = pair.partition("=")
        if not (categories and colon and key and equals and value):
            raise ConfigError(
                f"--grpc-restricted-protocol: '{restriction}' is not <category>,<category>,…:<key>=<value>"
            )
        for category in categories.split(","):
            if category not in CATEGORIES:
                raise ConfigError(
                    f"--grpc-restricted-protocol: unknown category '{category}', "
                    f"expected one of {', '.join(sorted(CATEGORIES))}"
                )
            if category in self._secrets:
                raise ConfigError(f"--grpc-restricted-protocol: category '{category}' is restricted twice")
            self._secrets[category] = _Secret(_KEY_PREFIX + key.lower(), value.encode())

    def check(self, category: str, metadata: Iterable[tuple[str, str | bytes]]) -> None:
        """Let a call pass or raise Unavailable, the code that Triton answers with."""
        secret = self._secrets.get(category)
        if secret is None:
            return
        for key, value in metadata:
            given = value if isinstance(value, bytes) else value.encode()
            if key == secret.key and hmac.compare_digest(given, secret.value):
                return
        raise Unavailable(f"This protocol is restricted, expecting header '{secret.key}'")
