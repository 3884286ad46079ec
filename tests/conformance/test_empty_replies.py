"""Replies without a body say so by `Content-Length: 0`."""

import http.client
from contextlib import closing

import pytest

from tests.server.process import ConchProcess


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v2/health/live", 200),
        ("GET", "/v2/health/ready", 200),
        ("GET", "/v2/models/addsub/ready", 200),
    ],
)
def test_an_empty_reply_has_length_zero(conch: ConchProcess, method: str, path: str, status: int) -> None:
    with closing(http.client.HTTPConnection(conch.http, timeout=30)) as connection:
        for _ in range(2):  # the connection stays usable
            connection.request(method, path)
            response = connection.getresponse()
            assert (response.status, response.getheader("Content-Length"), response.read()) == (status, "0", b"")
            assert response.getheader("Transfer-Encoding") is None
