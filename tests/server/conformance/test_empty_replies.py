"""Replies without a body: `Content-Length: 0`, and the content type of Triton."""

import http.client
from contextlib import closing

import pytest

from tests.support.server_process import ConchProcess


@pytest.mark.parametrize(
    ("method", "path", "kind"),
    [
        ("GET", "/v2/health/live", "text/plain"),
        ("GET", "/v2/health/ready", "text/plain"),
        ("GET", "/v2/models/addsub/ready", "text/plain"),
        ("POST", "/v2/repository/models/nope/unload", "application/json"),
        ("POST", "/v2/repository/models/addsub/load", "application/json"),
        ("POST", "/v2/systemsharedmemory/unregister", "application/json"),
        ("POST", "/v2/systemsharedmemory/region/nope/unregister", "application/json"),
        ("POST", "/v2/cudasharedmemory/unregister", "application/json"),
    ],
)
def test_an_empty_reply_has_length_zero(
    conch: ConchProcess, memory_server: ConchProcess, method: str, path: str, kind: str
) -> None:
    server = memory_server if "sharedmemory" in path else conch
    with closing(http.client.HTTPConnection(server.http, timeout=30)) as connection:
        for _ in range(2):  # the connection stays usable
            connection.request(method, path)
            response = connection.getresponse()
            assert (response.status, response.getheader("Content-Length"), response.read()) == (200, "0", b"")
            assert response.getheader("Content-Type") == kind
            assert response.getheader("Transfer-Encoding") is None
