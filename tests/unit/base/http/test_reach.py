"""Hosts that a server may name in redirects."""

import threading
from contextlib import suppress
from socket import create_server

import pytest

from conch.base.errors import Unavailable
from conch.base.http.client import HttpClient
from conch.base.http.reach import Reach, check_target, reach_of


@pytest.mark.parametrize(
    ("host", "reach"),
    [("8.8.8.8", Reach.PUBLIC), ("2001:4860:4860::8888", Reach.PUBLIC), ("no-such-host.invalid", Reach.PUBLIC),
     ("10.1.2.3", Reach.NETWORK), ("192.168.0.1", Reach.NETWORK), ("fd00::1", Reach.NETWORK),
     ("100.64.0.1", Reach.NETWORK), ("127.0.0.1", Reach.MACHINE), ("127.1", Reach.MACHINE),
     ("localhost", Reach.MACHINE), ("2130706433", Reach.MACHINE), ("0.0.0.0", Reach.MACHINE), ("::1", Reach.MACHINE),
     ("::ffff:127.0.0.1", Reach.MACHINE), ("169.254.169.254", Reach.LINK), ("fe80::1", Reach.LINK),
     ("64:ff9b::7f00:1", Reach.MACHINE), ("2002:a9fe:a9fe::", Reach.LINK), ("64:ff9b::808:808", Reach.PUBLIC),
     ("168.63.129.16", Reach.LINK), ("192.0.0.192", Reach.LINK)],
)  # fmt: skip
def test_the_reach_of_a_host(host: str, reach: Reach) -> None:
    assert reach_of(host) is reach


ALLOWED = [("8.8.8.8", "8.8.4.4"), ("10.0.0.1", "192.168.0.1"), ("10.0.0.1", "8.8.8.8"), ("127.0.0.1", "10.0.0.1"),
           ("127.0.0.1", "[::1]:80"), ("127.0.0.1", "8.8.8.8")]  # fmt: skip
REFUSED = [("8.8.8.8", "10.0.0.1"), ("8.8.8.8", "127.0.0.1:8000"), ("8.8.8.8", "169.254.169.254"),
           ("10.0.0.1", "127.0.0.1"), ("10.0.0.1", "169.254.169.254"), ("127.0.0.1", "169.254.169.254")]  # fmt: skip


@pytest.mark.parametrize(("origin", "target"), ALLOWED)
def test_hosts_that_may_be_named(origin: str, target: str) -> None:
    check_target(f"https://{origin}/a", f"https://{target}/b")


@pytest.mark.parametrize(("origin", "target"), REFUSED)
def test_inner_hosts_are_not_named_by_outer_ones(origin: str, target: str) -> None:
    with pytest.raises(Unavailable, match="names the inner address"):
        check_target(f"https://{origin}/a", f"https://user:secret@{target}/b")


@pytest.mark.parametrize(
    "target",
    ["http://127.0.0.1\\@example.com/", "http://[::1%25lo]/", "http://127.0.0.1 @example.com/", "http:///x",
     "http://[::1/", "file:///etc/passwd", "http://\t127.0.0.1/", "//8.8.8.8/", "http://8.8.8.8:999999/"],
)  # fmt: skip
def test_urls_that_readers_read_differently_are_refused(target: str) -> None:
    """Such as one whose host is example.com for `urlsplit`, and 127.0.0.1 for the client."""
    with pytest.raises(Unavailable, match="not a valid URL"):
        check_target("http://8.8.8.8/", target)


@pytest.mark.parametrize("path", ["", "/a b", "?q=\\", "/é", "/@127.0.0.1", "#x"])
def test_paths_may_be_anything(path: str) -> None:
    check_target("http://8.8.8.8/", f"https://user:word@a-b.example:443{path}")


def test_a_redirect_to_an_inner_host_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a public server, which the client asks through a proxy."""
    paths: list[bytes] = []
    listener = create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"

    def serve() -> None:
        with listener, suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    paths.append(connection.recv(65_536).split()[1])
                    answer = b"HTTP/1.1 302 Found\r\nLocation: %s/admin\r\nContent-Length: 0\r\n\r\n"
                    connection.sendall(answer % url.encode())

    threading.Thread(target=serve, daemon=True).start()
    monkeypatch.setenv("http_proxy", url)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with pytest.raises(Unavailable, match="names the inner address"):
        HttpClient().open("GET", "http://registry.invalid/x")
    assert paths == [b"http://registry.invalid/x"]
