"""URLs of servers as users write them."""

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from conch.base.http.url_credentials import check_no_credentials
from conch.measure.bench.load_plan import Endpoint, Tls, Transport
from conch.measure.bench.targets.target import TargetError

LOCAL_HTTP = "localhost:8000"
LOCAL_GRPC = "localhost:8001"
_SCHEMES = {"": (None, False), "http": ("http", False), "https": ("http", True)} | {
    name: ("grpc", secure) for name, secure in (("grpc", False), ("grpcs", True), ("grpc+tls", True))
}
_DEFAULT_PORTS = {"http": 80, "https": 443, "grpc": 8001, "grpcs": 443, "grpc+tls": 443, "": 8000}
_HOST_AND_PORT = re.compile(r"(\[[0-9a-fA-F:.%]+\]|[^:/\[\]\s]+):\d+(/.*)?")


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed URL. `wire` is "http", "grpc" or None if the URL does not say."""

    url: str
    host: str
    port: int
    wire: str | None
    secure: bool
    path: str  # without a slash at the end

    @property
    def place(self) -> str:
        """`host:port`, for messages."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def endpoint(self, transport: Transport, tls: Tls | None, headers: tuple[tuple[str, str], ...]) -> Endpoint:
        """Return where requests go."""
        return Endpoint(self.host, self.port, transport, (tls or Tls()) if self.secure else None, headers)


def is_address(text: str) -> bool:
    """Whether an argument is the address of a server rather than the name of a model."""
    if "://" in text or _HOST_AND_PORT.fullmatch(text) or text == "localhost":
        return True
    try:
        ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        return False
    return True


def parse_address(url: str) -> Address:
    """Parse `host:port`, `http://…`, `https://…`, `grpc://…` or `grpcs://…`, each with an optional path.

    Raises TargetError.
    """
    try:
        check_no_credentials(url)
    except ValueError as error:
        raise TargetError(str(error)) from None
    try:
        bare = "://" not in url
        if bare and url.count(":") > 1 and not url.startswith("["):
            url = f"[{url}]"  # an IPv6 address without a port
        parts = urlsplit(f"//{url}" if bare else url)
        scheme, port = parts.scheme.lower(), parts.port
    except ValueError as error:
        raise TargetError(f"'{url}' is not a valid URL: {error}") from None
    if scheme not in _SCHEMES:
        known = ", ".join(f"{name}://" for name in _SCHEMES if name)
        raise TargetError(f"'{url}' has the unknown scheme {scheme}://; use one of {known} or host:port")
    if not parts.hostname:
        raise TargetError(f"'{url}' has no host; use host:port, such as {LOCAL_HTTP}")
    wire, secure = _SCHEMES[scheme]
    return Address(url, parts.hostname, port or _DEFAULT_PORTS[scheme], wire, secure, parts.path.rstrip("/"))
