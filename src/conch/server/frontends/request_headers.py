# Compiled by mypyc in wheels.
"""What the headers of a request say: its tenant, for limits, and the parameters that clients send as headers.

The tenant is the value of a configured header, else the name of the API key. Where work of several clients is queued
in the server, a request without tenant belongs to the network address.
"""

import hashlib
from collections.abc import Callable, Iterable
from ipaddress import IPv6Address, ip_address
from typing import Final

from conch.base.errors import ConfigError, InvalidRequest
from conch.base.http.header_patterns import compile_pattern
from conch.domain.request import ParameterValue
from conch.protocols.access.api_keys import ApiKeys
from conch.protocols.http.message import HttpRequest

_AUTHORIZATION: Final = "authorization"
# Headers that hold secrets, which must not become labels: the tenant is a hash of the value.
_SECRET: Final = frozenset({_AUTHORIZATION, "proxy-authorization", "cookie", "x-api-key", "api-key"})
_MAX_LENGTH: Final = 64
_HASH_DIGITS: Final = 12
_MAX_CACHED: Final = 4096
# Credentials of clients and of the proxies before the server, whatever the pattern says.
_CREDENTIALS: Final = frozenset({"authorization", "proxy-authorization", "cookie"})


class Tenants:
    """Finds tenants. A request without header and key has the tenant "".

    Names that are longer than 64 characters, not printable, or begin with "_", and the values of secret headers are
    replaced by `sha256:` and the first 12 digits of their SHA-256.
    """

    def __init__(self, header: str = "", keys: ApiKeys | None = None, secret_headers: Iterable[str] = ()) -> None:
        """Create the finder. `header` names a header that a trusted proxy sets, "" for none."""
        self._header = header.lower()
        self._header_bytes = self._header.encode()
        self._secret = self._header in _SECRET or self._header in secret_headers
        self._keys = keys or None
        self._cached: dict[bytes, str] = {}  # names of tenants by header value, or by authorization
        self._version = 0

    def of_http(self, request: HttpRequest) -> str:
        """Return the tenant of an HTTP request."""
        if request.tenant is not None:
            return request.tenant
        headers = request.headers
        if self._header:
            value = headers.get(self._header_bytes)
            if value is not None:
                return self._named(value)
        if self._keys is not None:
            value = headers.get(b"authorization")
            if value is not None:
                return self._of_key(value)
        return ""

    def of_grpc(self, metadata: Iterable[tuple[str, str | bytes]]) -> str:
        """Return the tenant of a gRPC call."""
        authorization = ""
        for key, value in metadata:
            if key == self._header and isinstance(value, str):
                return self._named(value.encode("latin-1"))
            if key == _AUTHORIZATION and isinstance(value, str):
                authorization = value
        if self._keys is None or not authorization:
            return ""
        return self._of_key(authorization.encode("latin-1"))

    def client_of_http(self, request: HttpRequest, peer: str) -> str:
        """Return the client in whose turn work for an HTTP request is done: its tenant, else its address."""
        return client_name(self.of_http(request), peer)

    def client_of_grpc(self, metadata: Iterable[tuple[str, str | bytes]], peer: str) -> str:
        """Return the client in whose turn work for a gRPC call is done: its tenant, else its address."""
        return client_name(self.of_grpc(metadata), peer)

    def key_name(self, request: HttpRequest) -> str:
        """Return the name of the API key of an HTTP request, "" for none."""
        value = request.headers.get(b"authorization")
        return "" if value is None or self._keys is None else self._of_key(value)

    def _named(self, value: bytes) -> str:
        tenant = self._cached.get(value)
        if tenant is None:
            tenant = tenant_name(value, secret=self._secret)
            self._keep(value, tenant)
        return tenant

    def _of_key(self, authorization: bytes) -> str:
        keys = self._keys
        assert keys is not None
        if keys.version != self._version:
            self._version = keys.version
            self._cached.clear()
        cached = b"\n" + authorization  # which no header value contains
        tenant = self._cached.get(cached)
        if tenant is None:
            key = keys.find(authorization)
            tenant = "" if key is None else tenant_name(key.name.encode())
            self._keep(cached, tenant)
        return tenant

    def _keep(self, value: bytes, tenant: str) -> None:
        if len(self._cached) >= _MAX_CACHED:
            self._cached.clear()
        self._cached[value] = tenant


def client_name(tenant: str, peer: str) -> str:
    """Return a name for the tenant, or for the address of a client without one: in IPv6 for its network."""
    if tenant:
        return f"tenant:{tenant}"
    if ":" in peer:
        try:
            address = ip_address(peer.partition("%")[0])
        except ValueError:
            return f"address:{peer}"
        if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
            return f"network:{int(address) >> 64:x}"  # a host has all of a /64
    return f"address:{peer}"


def tenant_name(value: bytes, *, secret: bool = False) -> str:
    """Return the name of a tenant for limits and labels."""
    text = value.decode("utf-8", "replace").strip()
    if not text:
        return ""
    if secret or len(text) > _MAX_LENGTH or not text.isprintable() or text.startswith("_") or text == "*":
        return f"sha256:{hashlib.sha256(value).hexdigest()[:_HASH_DIGITS]}"
    return text


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
