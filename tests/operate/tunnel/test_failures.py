"""Messages of OpenSSH and the reasons that they mean. The messages are recorded from OpenSSH 9.2."""

import pytest

from conch.domain.metrics.catalog import areas
from conch.operate.tunnel.ssh_command import ALL_FAILURES, failure_of
from conch.operate.tunnel.supervisor import TunnelState


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        (
            [
                "WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!",
                "Host key for [10.0.0.2]:2222 has changed and you have requested strict checking.",
                "Host key verification failed.",
            ],
            "host_key_changed",
        ),
        (
            [
                "No ED25519 host key is known for [10.0.0.2]:2222 and you have requested strict checking.",
                "Host key verification failed.",
            ],
            "host_key_unknown",
        ),
        (
            [
                "WARNING: UNPROTECTED PRIVATE KEY FILE!",
                'Load key "/tmp/id": bad permissions',
                "root@10.0.0.2: Permission denied (publickey).",
            ],
            "key_permissions",
        ),
        (["root@10.0.0.2: Permission denied (publickey)."], "authentication"),
        (["bind [127.0.0.1]:9400: Address already in use", "Could not request local forwarding."], "port_taken"),
        (["Error: remote port forwarding failed for listen port 9400"], "remote_port"),
        (["Timeout, server 10.0.0.2 not responding."], "keepalive"),
        (["ssh: connect to host 10.0.0.2 port 22: Connection refused"], "unreachable"),
        (["ssh: connect to host 10.0.0.2 port 22: Connection timed out"], "unreachable"),
        (["ssh: Could not resolve hostname x: Name or service not known"], "unreachable"),
        (["Connection timed out during banner exchange"], "unreachable"),
        (["Connection to 10.0.0.2 closed by remote host."], "closed"),
        (["client_loop: send disconnect: Broken pipe"], "closed"),
        (["command-line: line 0: Bad configuration option: nonsense"], "configuration"),
        ([], "exited"),
    ],
)
def test_a_message_has_a_reason(messages: list[str], reason: str) -> None:
    assert failure_of(messages)[0].reason == reason


def test_all_reasons_are_exported_from_the_start() -> None:
    text = b"".join(TunnelState("gpu1").exposition()).decode()
    assert text.count("conch_tunnel_failures_total{") == len(ALL_FAILURES)
    assert 'conch_tunnel_up{target="gpu1"} 0' in text
    assert "conch_tunnel_last_connect_timestamp_seconds{" not in text


def test_the_metrics_are_those_of_the_catalog() -> None:
    state = TunnelState("gpu1")
    state.last_connect = 1.5
    text = b"".join(state.exposition()).decode()
    for metric in areas()["tunnel"]:
        assert f"# HELP {metric.name} {metric.help}\n# TYPE {metric.name} {metric.kind}\n" in text
