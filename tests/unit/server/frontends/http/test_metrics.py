import pytest

from conch.protocols.http.metrics_page import MetricsPage, metrics_router
from tests.unit.server.frontends.http.conftest import client_of


@pytest.fixture
def client(listen):
    with client_of(listen(metrics_router(MetricsPage(lambda: iter([b"up ", b"1\n"]))))) as client:
        yield client


def test_a_scrape(client):
    status, body, response = client("GET", "/metrics")
    assert (status, body) == (200, b"up 1\n")
    assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"


def test_a_slash_at_the_end_changes_nothing(client):
    assert client("GET", "/metrics/")[:2] == (200, b"up 1\n")


def test_the_root_links_to_the_metrics(client):
    status, body, response = client("GET", "/")
    assert (status, response.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert b'<a href="/metrics">' in body


def test_other_paths_and_methods(client):
    assert client("GET", "/other")[:2] == (404, b'{"error":"Not Found"}')
    assert client("GET", "/metrics/other")[:2] == (404, b'{"error":"Not Found"}')
    assert client("POST", "/metrics")[:2] == (405, b'{"error":"Method Not Allowed"}')
    assert client("POST", "/other")[:2] == (404, b'{"error":"Not Found"}')
