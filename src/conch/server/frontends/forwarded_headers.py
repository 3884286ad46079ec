"""Request headers and gRPC metadata that become parameters of a request (`--…-header-forward-pattern`)."""

from collections.abc import Callable, Iterable

from conch.base.errors import ConfigError, InvalidRequest
from conch.base.header_patterns import compile_pattern
from conch.domain.request import ParameterValue

# Credentials of clients and of the proxies before the server, whatever the pattern says.
_CREDENTIALS = frozenset({"authorization", "proxy-authorization", "cookie"})


class ForwardedHeaders:
    """Selects headers by name. Credentials are never forwarded: they would reach models, traces and logs."""

    def __init__(
        self, pattern: str, reserved: Callable[[str], bool], *, flag: str = "", secret: Iterable[str] = ()
    ) -> None:
        """Compile a regular expression; the empty one matches nothing.

        `reserved` tells which names a parameter must not have; `secret` are names of further headers that hold
        credentials. Raises ConfigError for an invalid pattern.
        """
        self._reserved = reserved
        self._withheld = _CREDENTIALS | {name.lower() for name in secret}
        try:
            self._pattern = compile_pattern(pattern) if pattern else None
        except ValueError as error:
            raise ConfigError(f"{flag}: '{pattern}' is not a valid regular expression: {error}") from None

    def __bool__(self) -> bool:
        return self._pattern is not None

    def add(self, parameters: dict[str, ParameterValue], headers: Iterable[tuple[str, str | bytes]]) -> None:
        """Add the headers to forward; values that are bytes are skipped.

        Raises InvalidRequest for a name that a parameter must not have.
        """
        if self._pattern is None:
            return
        for name, value in headers:
            if isinstance(value, bytes) or not self._pattern.search(name) or name.lower() in self._withheld:
                continue
            if self._reserved(name):
                raise InvalidRequest(f"header '{name}' cannot be forwarded: as a parameter its name is reserved")
            parameters[name] = value
