"""Forwards, and the command line of ssh."""

from itertools import pairwise
from pathlib import Path

import pytest

from conch.operate.tunnel.ssh_command import Forward, TunnelSettings, parse_target, remote_address, ssh_command


def settings(*forwards: str, **changes: object) -> TunnelSettings:
    return TunnelSettings(
        target="gpu@gpu1.example.com", forwards=tuple(map(Forward.parse, forwards)), name="gpu1", **changes
    )


def options(command: list[str]) -> dict[str, str]:
    pairs = [value for flag, value in pairwise(command) if flag == "-o"]
    return dict(pair.split("=", 1) for pair in pairs)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("9400:localhost:9400", "127.0.0.1:9400:localhost:9400"),
        ("10.0.24.31:9400:10.42.0.7:9400", "10.0.24.31:9400:10.42.0.7:9400"),
        ("[::1]:9400:[fd00::7]:9401", "[::1]:9400:[fd00::7]:9401"),
        ("*:9400:localhost:9400", "*:9400:localhost:9400"),
    ],
)
def test_a_forward_is_read_and_written(text: str, expected: str) -> None:
    assert str(Forward.parse(text)) == expected


@pytest.mark.parametrize(
    "text", ["", "9400", "9400:localhost", "0:localhost:9400", "9400:localhost:65536", "a:b:c:d:e"]
)
def test_an_invalid_forward_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a valid forward"):
        Forward.parse(text)


@pytest.mark.parametrize(
    ("bind", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.3.0.1", True),
        ("localhost", True),
        ("[::1]", True),
        ("0.0.0.0", False),
        ("*", False),
        ("10.0.24.31", False),
        ("[::]", False),
        ("m1", False),
    ],
)
def test_loopback_is_recognised(bind: str, loopback: bool) -> None:
    assert Forward.parse(f"{bind}:9400:localhost:9400").loopback is loopback


@pytest.mark.parametrize("text", ["-oProxyCommand=id", "a b", "", "host;id", "user@"])
def test_a_target_cannot_be_an_option(text: str) -> None:
    with pytest.raises(ValueError, match="not a valid target"):
        parse_target(text)


def test_ssh_refuses_what_a_tunnel_must_not_do() -> None:
    chosen = options(ssh_command(settings("9400:localhost:9400")))
    assert chosen["StrictHostKeyChecking"] == "yes"
    assert chosen["BatchMode"] == "yes"
    assert chosen["ExitOnForwardFailure"] == "yes"
    assert chosen["ServerAliveInterval"] == "5"
    assert chosen["ServerAliveCountMax"] == "3"
    assert chosen["ForwardAgent"] == chosen["PermitLocalCommand"] == chosen["UpdateHostKeys"] == "no"


def test_key_files_are_the_only_ones() -> None:
    command = ssh_command(settings("1:h:2", identity=Path("/etc/my keys/id"), known_hosts=Path("/etc/a%b")))
    chosen = options(command)
    assert chosen["IdentityFile"] == '"/etc/my keys/id"'
    assert chosen["IdentitiesOnly"] == "yes"
    assert chosen["UserKnownHostsFile"] == '"/etc/a%%b"'
    assert chosen["GlobalKnownHostsFile"] == "/dev/null"
    assert command[-2:] == ["--", "gpu@gpu1.example.com"]


def test_a_reverse_forward_has_a_socket_for_probes() -> None:
    forward = Forward.parse("0.0.0.0:9400:localhost:9401", reverse=True)
    command = ssh_command(
        TunnelSettings(target="h", forwards=(forward,), name="h"), probe_sockets=[Path("/run/t/0.sock")]
    )
    assert command[command.index("-R") + 1] == "0.0.0.0:9400:localhost:9401"
    assert command[command.index("-L") + 1] == "/run/t/0.sock:127.0.0.1:9400"
    assert remote_address(forward) == "127.0.0.1"
