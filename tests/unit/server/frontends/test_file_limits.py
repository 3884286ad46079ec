"""Connections are bounded by what the system lets a process open."""

import resource

import pytest

from conch.protocols.connections.listener import max_connections


@pytest.mark.parametrize(
    ("limit", "allowed"), [(resource.RLIM_INFINITY, 5000), (1_048_576, 5000), (1024, 384), (64, 16)]
)
def test_a_listener_takes_what_leaves_enough_for_the_rest(
    monkeypatch: pytest.MonkeyPatch, limit: int, allowed: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    assert max_connections(5000) == allowed
