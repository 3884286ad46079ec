"""Whether a server may send this one to another host: not to one that only this machine or network reaches."""

import ipaddress
import re
import socket
from enum import IntEnum
from urllib.parse import urlsplit

from conch.base.errors import Unavailable
from conch.base.http.credentials import without_secrets

# Readers of URLs differ in where a host ends, such as at a backslash: none of these URLs has two readings.
_URL = re.compile(
    r"https?://(?:[\w.~!$&'()*+,;=:%-]*@)?(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::\d{0,5})?(?:[/?#].*)?",
    re.ASCII | re.IGNORECASE | re.DOTALL,
)
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# Addresses of clouds' metadata that are not link-local.
_CLOUDS = (ipaddress.ip_network("168.63.129.16/32"), ipaddress.ip_network("192.0.0.0/24"))


class Reach(IntEnum):
    """From where a host can be reached."""

    PUBLIC = 0  # also a name that this machine cannot resolve, such as behind a proxy
    NETWORK = 1
    MACHINE = 2
    LINK = 3  # such as the metadata of a cloud's machine


def reach_of(host: str) -> Reach:
    """Return from where a host, a name or an address, can be reached; of its addresses the innermost counts."""
    try:
        addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return Reach.PUBLIC
    return max((_reach_of_address(str(address[0])) for *_, address in addresses), default=Reach.PUBLIC)


def check_target(origin: str, target: str) -> None:
    """Raise Unavailable if the server of the URL `origin` names a URL that only inner hosts may name.

    A host of a network may name others of it, and this machine all but link-local ones. The name is resolved again
    when it is connected to, so a name whose address changes in between is not detected.
    """
    if _URL.fullmatch(target) is None:
        raise Unavailable(f"{without_secrets(origin)}: names an address that is not a valid URL")
    reach, own = reach_of(urlsplit(target).hostname or ""), reach_of(urlsplit(origin).hostname or "")
    if reach in (Reach.PUBLIC, own) or (own is Reach.MACHINE and reach is Reach.NETWORK):
        return
    raise Unavailable(f"{without_secrets(origin)}: names the inner address {without_secrets(target)}, which is refused")


def _reach_of_address(text: str) -> Reach:
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        translated = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else None
        address = address.ipv4_mapped or address.sixtofour or translated or address
    if address.is_loopback or address.is_unspecified:
        return Reach.MACHINE
    if address.is_link_local or any(address in network for network in _CLOUDS):
        return Reach.LINK
    return Reach.PUBLIC if address.is_global else Reach.NETWORK
