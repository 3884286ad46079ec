"""The programs accept the generated configurations."""

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import trustme

from conch.operate.deployment.load_balancers import (
    BalancedReplica,
    ListenerTls,
    LoadBalancer,
    haproxy_configuration,
    nginx_configuration,
)
from tests.support.debian import debian_environment, debian_tool

REPLICAS = (
    BalancedReplica("a", "127.0.0.1"),
    BalancedReplica("b", "127.0.0.2", weight=2),
    BalancedReplica("c", "127.0.0.3", state="drain"),
)
BALANCERS = {
    "default": LoadBalancer(replicas=REPLICAS),
    "one replica, limits": LoadBalancer(replicas=REPLICAS[:1], max_body_bytes=1000, access_log=False),
    "down": LoadBalancer(replicas=(REPLICAS[0], replace(REPLICAS[1], state="down"))),
    "all options": LoadBalancer(replicas=REPLICAS, admin_socket="/run/conch.sock", metrics_port=8404),
}


@pytest.mark.parametrize("balancer", BALANCERS.values(), ids=BALANCERS)
def test_haproxy_accepts_the_configuration(balancer: LoadBalancer, tmp_path: Path) -> None:
    file = tmp_path / "haproxy.cfg"
    file.write_text(haproxy_configuration(balancer))
    _check([str(debian_tool("haproxy")), "-c", "-f", str(file)])


@pytest.mark.parametrize("balancer", BALANCERS.values(), ids=BALANCERS)
def test_nginx_accepts_the_configuration(balancer: LoadBalancer, tmp_path: Path) -> None:
    file = tmp_path / "nginx.conf"
    file.write_text(nginx_configuration(replace(balancer, run_folder=str(tmp_path))))
    _check([str(debian_tool("nginx")), "-t", "-e", "stderr", "-p", str(tmp_path), "-c", str(file)])


@pytest.fixture
def secure(tmp_path: Path) -> LoadBalancer:
    """TLS with a new certificate, whose key is where HAProxy looks for it."""
    certificate, key = tmp_path / "tls.pem", tmp_path / "tls.pem.key"
    issued = trustme.CA().issue_cert("localhost")
    issued.cert_chain_pems[0].write_to_path(certificate)
    issued.private_key_pem.write_to_path(key)
    return LoadBalancer(replicas=REPLICAS, tls=ListenerTls(str(certificate), str(key)), run_folder=str(tmp_path))


def test_both_accept_tls(secure: LoadBalancer, tmp_path: Path) -> None:
    (tmp_path / "haproxy.cfg").write_text(haproxy_configuration(secure))
    _check([str(debian_tool("haproxy")), "-c", "-f", str(tmp_path / "haproxy.cfg")])
    (tmp_path / "nginx.conf").write_text(nginx_configuration(secure))
    nginx = [str(debian_tool("nginx")), "-t", "-e", "stderr", "-p", str(tmp_path)]
    _check([*nginx, "-c", str(tmp_path / "nginx.conf")])


def _check(command: list[str]) -> None:
    run = subprocess.run(command, env=debian_environment(), capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
    assert not re.search("warn", run.stderr, re.IGNORECASE), run.stderr
