import pytest

from conch.frontends.metrics_http import MetricsHttp
from tests.unit.frontends.http.conftest import client_of


@pytest.fixture
def client(listen):
    with client_of(listen(MetricsHttp(lambda: b"up 1\n"))) as client:
        yield client


def test_a_scrape(client):
    status, body, response = client("GET", "/metrics")
    assert (status, body) == (200, b"up 1\n")
    assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"


def test_other_paths_and_methods(client):
    assert client("GET", "/other")[:2] == (200, b"")
    assert client("POST", "/metrics")[:2] == (405, b'{"error":"Method Not Allowed"}')
