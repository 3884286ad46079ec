"""Restricted APIs: groups of endpoints that require a secret header.

`--http-restricted-api` and `--grpc-restricted-protocol` share one form: `<category>[,<category>…]:<header>=<value>`.
"""

import hmac
from collections.abc import Callable, Iterable
from typing import NamedTuple

from conch.base.errors import ConfigError

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
        "limits",
        "debug",
    }
)


class _Secret(NamedTuple):
    header: str  # as configured, and as shown to clients
    key: str  # in lower case, as it arrives
    value: bytes


class Restrictions:
    """The header that each restricted category requires."""

    def __init__(self, values: Iterable[str] = (), *, flag: str = "", prefix: str = "") -> None:
        """Read the values of a flag; `prefix` stands before the headers' names on the wire. Raises ConfigError."""
        self._secrets: dict[str, _Secret] = {}
        for value in values:
            self._add(value, flag, prefix)

    def __bool__(self) -> bool:
        return bool(self._secrets)

    @property
    def headers(self) -> frozenset[str]:
        """The names of the secret headers on the wire, in lower case."""
        return frozenset(secret.key for secret in self._secrets.values())

    def restricts(self, category: str) -> bool:
        """Whether a category requires a header."""
        return category in self._secrets

    def _add(self, text: str, flag: str, prefix: str) -> None:
        # The value is a secret, and is not repeated in messages.
        categories, colon, pair = text.partition(":")
        name, equals, value = pair.partition("=")
        if not (categories and colon and name and equals and value):
            raise ConfigError(f"{flag}: '{categories}:…' is not of the form <category>,<category>,…:<header>=<value>")
        group = "protocol" if prefix else "api"  # Triton's words for the flags of gRPC and HTTP
        for category in categories.split(","):
            if category not in CATEGORIES:
                known = ", ".join(sorted(CATEGORIES))
                raise ConfigError(f"unknown restricted {group} '{category}' in {flag}; expected one of {known}")
            if category in self._secrets:
                raise ConfigError(
                    f"restricted {group} '{category}' can not be specified in multiple config groups of {flag}"
                )
            header = prefix + name
            self._secrets[category] = _Secret(header, header.lower(), value.encode())

    def missing_header(self, category: str, sent: Callable[[str], bytes]) -> str | None:
        """Return the required header that is missing or wrong, None if the client may call.

        `sent` returns the value of a request header, b"" if it is missing; names are in lower case.
        """
        secret = self._secrets.get(category)
        # Constant-time comparison: the duration does not reveal how much of a guess is right.
        if secret is None or hmac.compare_digest(sent(secret.key), secret.value):
            return None
        return secret.header


def http_restrictions(values: Iterable[str]) -> Restrictions:
    """Return the restrictions of the HTTP port: `--http-restricted-api`. Raises ConfigError."""
    return Restrictions(values, flag="--http-restricted-api")


def grpc_restrictions(values: Iterable[str]) -> Restrictions:
    """Return the restrictions of the gRPC port: `--grpc-restricted-protocol`. Raises ConfigError."""
    return Restrictions(values, flag="--grpc-restricted-protocol", prefix="triton-grpc-protocol-")


def secret_headers(http_values: Iterable[str], grpc_values: Iterable[str]) -> frozenset[str]:
    """Return the names of the headers that restrictions of either port require. Raises ConfigError.

    Clients may send the headers of one port to the other.
    """
    return http_restrictions(http_values).headers | grpc_restrictions(grpc_values).headers
