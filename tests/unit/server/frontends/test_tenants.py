"""Tenants of requests: by header, by key, and never a secret."""

import hashlib
from pathlib import Path

import pytest

from conch.protocols.access.api_keys import ApiKeys
from conch.protocols.http.message import HttpRequest
from conch.server.frontends.request_headers import Tenants


def request(**headers: str) -> HttpRequest:
    fields = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return HttpRequest(b"POST", "/", fields)


@pytest.fixture
def keys(tmp_path: Path) -> ApiKeys:
    path = tmp_path / "keys"
    path.write_text("alice infer secret-a\n_all infer secret-b\n")
    path.chmod(0o600)
    keys = ApiKeys(str(path))
    keys.load()
    return keys


def digest(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def test_the_header_has_precedence_over_the_key(keys: ApiKeys) -> None:
    tenants = Tenants("X-Tenant", keys)
    assert tenants.of_http(request(x_tenant="acme", authorization="Bearer secret-a")) == "acme"
    assert tenants.of_http(request(authorization="Bearer secret-a")) == "alice"
    assert tenants.of_http(request()) == ""
    metadata = [("authorization", "Bearer secret-a"), ("x-tenant", "acme"), ("x-bin", b"1")]
    assert tenants.of_grpc(metadata) == "acme"
    assert tenants.of_grpc(metadata[:1]) == "alice"
    assert tenants.of_grpc(()) == ""


def test_without_header_and_keys_there_are_no_tenants() -> None:
    assert Tenants().of_http(request(authorization="Bearer x", x_tenant="a")) == ""
    assert Tenants().of_grpc([("authorization", "Bearer x")]) == ""


@pytest.mark.parametrize("name", ["_all", "_other", "*", "x" * 65, "a\x01b"])
def test_names_that_are_taken_or_not_fit_for_labels_are_hashed(name: str) -> None:
    assert Tenants("x-tenant").of_http(request(x_tenant=name)) == digest(name)


@pytest.mark.parametrize("header", ["authorization", "Cookie", "x-api-key", "the-secret"])
def test_secrets_are_hashed(header: str) -> None:
    tenants = Tenants(header, secret_headers={"the-secret"})
    assert tenants.of_http(HttpRequest(b"POST", "/", [(header.encode(), b"secret")])) == digest("secret")


def test_keys_that_change_are_looked_up_again(keys: ApiKeys, tmp_path: Path) -> None:
    tenants, asked = Tenants("", keys), request(authorization="Bearer secret-a")
    assert tenants.of_http(asked) == "alice"
    assert tenants.key_name(asked) == "alice"
    assert tenants.of_http(request(authorization="Bearer secret-b")) == digest("_all")
    (tmp_path / "keys").write_text("carol infer secret-a\n")
    keys.load()
    assert tenants.of_http(asked) == "carol"


def test_many_tenants_take_bounded_memory() -> None:
    tenants = Tenants("x-tenant")
    for number in range(10_000):
        assert tenants.of_http(request(x_tenant=str(number))) == str(number)
    assert len(tenants._cached) <= 4096
