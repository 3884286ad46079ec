"""`conch tunnel` with a real ssh and sshd: reconnects, refusals with their remedies, and a clean end."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from conch.operate.tunnel.command import tunnel as tunnel_command
from tests.operate.tunnel.sshd import Sshd, descendants, generate_key
from tests.operate.tunnel.wan_proxy import WanProxy
from tests.support.debian import debian_environment, debian_tool
from tests.support.ports import free_port

pytestmark = pytest.mark.slow
TIMEOUT_S = 60


class Exporter(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b"exporter_value 1\n"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


class RunningTunnel:
    """A `conch tunnel` process and its log."""

    def __init__(self, folder: Path, sshd: Sshd, *flags: str, port: int = 0) -> None:
        self.log_file = folder / "tunnel.log"
        command = [
            *(sys.executable, "-m", "conch", "tunnel", f"root@{sshd.address}" if os.geteuid() == 0 else sshd.address),
            f"--ssh={debian_tool('ssh')}",
            f"--ssh-port={port or sshd.port}",
            f"--identity={sshd.identity}",
            f"--known-hosts={sshd.known_hosts}",
            *("--keepalive-secs=20", "--keepalive-count=2", "--connect-timeout-secs=5", "--probe-interval-secs=0.2"),
            *("--min-backoff-secs=0.2", "--max-backoff-secs=1", "--metrics-port=0", "--name=gpu1", *flags),
        ]
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=debian_environment())

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def wait(self, text: str, times: int = 1) -> None:
        """Wait until the log has a text."""
        wait_for(lambda: self.log().count(text) >= times or self.process.poll() is not None, self.log)
        assert self.log().count(text) >= times, self.log()

    def metrics(self) -> dict[str, float]:
        self.wait("Started metrics")
        port = re.search(r"Started metrics of the tunnel at 127.0.0.1:(\d+)", self.log())
        assert port
        lines = get(int(port[1])).splitlines()
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}

    def failures(self, reason: str) -> float:
        return self.metrics()[f'conch_tunnel_failures_total{{reason="{reason}",target="gpu1"}}']

    @property
    def up(self) -> bool:
        return self.metrics()['conch_tunnel_up{target="gpu1"}'] == 1

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(TIMEOUT_S)


def wait_for(condition: Callable[[], bool], what: Callable[[], object]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)


def get(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=TIMEOUT_S) as answer:
        return str(answer.read().decode())


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def exporter() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Exporter)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Sshd]:
    server = Sshd(tmp_path / "sshd")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def start(tmp_path: Path, sshd: Sshd) -> Iterator[Callable[..., RunningTunnel]]:
    started: list[RunningTunnel] = []

    def run(*flags: str, port: int = 0) -> RunningTunnel:
        started.append(RunningTunnel(tmp_path, sshd, *flags, port=port))
        return started[-1]

    yield run
    for process in started:
        process.stop()


@pytest.mark.parametrize("way", ["forward", "reverse"])
def test_it_forwards_and_comes_back_when_sshd_is_killed(
    start: Callable[..., RunningTunnel], sshd: Sshd, exporter: int, way: str
) -> None:
    port = free_port()
    tunnel = start(f"--{way}={port}:127.0.0.1:{exporter}")
    tunnel.wait("is up")
    assert get(port) == "exporter_value 1\n"
    sshd.stop()
    tunnel.wait("is down")
    assert not tunnel.up
    sshd.start()
    wait_for(lambda: tunnel.up, tunnel.log)
    assert get(port) == "exporter_value 1\n"
    metrics = tunnel.metrics()
    assert metrics['conch_tunnel_connects_total{target="gpu1"}'] == 2
    assert abs(metrics['conch_tunnel_last_connect_timestamp_seconds{target="gpu1"}'] - time.time()) < TIMEOUT_S
    assert tunnel.failures("closed") == 1


def test_a_changed_host_key_is_refused_until_known_hosts_changes(
    start: Callable[..., RunningTunnel], sshd: Sshd, exporter: int
) -> None:
    tunnel = start(f"--forward={free_port()}:127.0.0.1:{exporter}")
    tunnel.wait("is up")
    sshd.stop()
    sshd.change_key()
    sshd.start()
    tunnel.wait("has changed")
    assert f"ssh-keygen -R '[127.0.0.1]:{sshd.port}' -f {sshd.known_hosts}" in tunnel.log()
    connections = sshd.log().count("Connection from")
    time.sleep(3)  # several back-offs
    assert sshd.log().count("Connection from") == connections
    assert tunnel.failures("host_key_changed") == 1
    assert not tunnel.up
    sshd.trust()
    wait_for(lambda: tunnel.up, tunnel.log)


def test_an_unknown_host_key_is_refused(start: Callable[..., RunningTunnel], sshd: Sshd, exporter: int) -> None:
    sshd.known_hosts.write_text("")
    tunnel = start(f"--forward={free_port()}:127.0.0.1:{exporter}")
    tunnel.wait("ssh-keyscan")
    assert tunnel.failures("host_key_unknown") == 1
    assert sshd.known_hosts.read_text() == ""
    sshd.trust()
    tunnel.wait("is up")


def test_a_key_that_sshd_does_not_know_is_refused(
    start: Callable[..., RunningTunnel], sshd: Sshd, exporter: int, tmp_path: Path
) -> None:
    secret = generate_key(tmp_path / "other")
    tunnel = start(f"--forward={free_port()}:127.0.0.1:{exporter}", f"--identity={secret}")
    tunnel.wait("refused the login")
    assert tunnel.failures("authentication") >= 1
    lines = [line for line in secret.read_text().splitlines() if "KEY" not in line]
    assert not any(line in tunnel.log() for line in lines)


def test_a_key_file_that_others_can_read_is_refused(sshd: Sshd, capsys: pytest.CaptureFixture[str]) -> None:
    sshd.identity.chmod(0o644)
    flags = ["--forward=9400:localhost:9400", f"--identity={sshd.identity}", f"--ssh={debian_tool('ssh')}"]
    with pytest.raises(SystemExit) as ended:
        tunnel_command(["127.0.0.1", *flags])
    assert ended.value.code == 2
    assert f"chmod 600 {sshd.identity}" in capsys.readouterr().err


def test_a_key_file_that_others_can_read_later_is_refused(
    start: Callable[..., RunningTunnel], sshd: Sshd, exporter: int
) -> None:
    tunnel = start(f"--forward={free_port()}:127.0.0.1:{exporter}")
    tunnel.wait("is up")
    sshd.identity.chmod(0o644)
    sshd.stop()
    sshd.start()
    tunnel.wait("chmod 600")
    sshd.identity.chmod(0o600)
    wait_for(lambda: tunnel.up, tunnel.log)
    assert tunnel.failures("key_permissions") == 1


def test_a_port_that_is_taken_is_reported_and_used_once_it_is_free(
    start: Callable[..., RunningTunnel], exporter: int
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        tunnel = start(f"--forward={port}:127.0.0.1:{exporter}")
        tunnel.wait("is in use")
        assert tunnel.failures("port_taken") >= 1
        assert not tunnel.up
    tunnel.wait("is up")


def test_an_exporter_that_is_down_does_not_restart_ssh(start: Callable[..., RunningTunnel], exporter: int) -> None:
    tunnel = start(f"--forward={free_port()}:127.0.0.1:{free_port()}")
    tunnel.wait("does not answer")
    wait_for(lambda: tunnel.failures("exporter") >= 3, tunnel.log)
    assert not tunnel.up
    assert tunnel.metrics()['conch_tunnel_connects_total{target="gpu1"}'] == 1


def test_a_half_dead_connection_is_noticed(start: Callable[..., RunningTunnel], sshd: Sshd, exporter: int) -> None:
    """The proxy holds connections open and passes nothing on."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        proxy = WanProxy("127.0.0.1", sshd.port)
        port = asyncio.run_coroutine_threadsafe(proxy.start("127.0.0.1", 0), loop).result(TIMEOUT_S)
        key = sshd.host_key.with_suffix(".pub").read_text()
        sshd.known_hosts.write_text(f"[127.0.0.1]:{port} {key}")
        tunnel = start(f"--forward={free_port()}:127.0.0.1:{exporter}", "--keepalive-secs=1", port=port)
        tunnel.wait("is up")
        proxy.frozen = True
        tunnel.wait("is down")
        assert tunnel.failures("keepalive") + tunnel.failures("probe_timeout") == 1
        proxy.frozen = False
        wait_for(lambda: tunnel.up, tunnel.log)
        loop.call_soon_threadsafe(proxy.stop)
        tunnel.stop()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0.1))
        loop.close()


def test_a_long_banner_does_not_stop_the_tunnel(
    start: Callable[..., RunningTunnel], sshd: Sshd, exporter: int, tmp_path: Path
) -> None:
    """sshd sends it before the login, and ssh prints it."""
    banner = tmp_path / "banner"
    banner.write_text("x" * 200_000)
    sshd.config.write_text(f"{sshd.config.read_text()}Banner {banner}\n")
    sshd.stop()
    sshd.start()
    start(f"--forward={free_port()}:127.0.0.1:{exporter}").wait("is up")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_ssh_outlives_it(start: Callable[..., RunningTunnel], exporter: int, number: int) -> None:
    tunnel = start(f"--forward={free_port()}:127.0.0.1:{exporter}")
    tunnel.wait("is up")
    children = descendants(tunnel.process.pid)
    assert children
    tunnel.process.send_signal(number)
    assert tunnel.process.wait(TIMEOUT_S) == (0 if number == signal.SIGTERM else -number)
    wait_for(lambda: not any(map(alive, children)), lambda: children)


def test_a_bind_that_other_hosts_reach_needs_a_flag(
    start: Callable[..., RunningTunnel], exporter: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        tunnel_command(["127.0.0.1", "--forward=0.0.0.0:9400:localhost:9400"])
    assert "--allow-remote-bind" in capsys.readouterr().err
    tunnel = start(f"--forward=0.0.0.0:{free_port()}:127.0.0.1:{exporter}", "--allow-remote-bind")
    tunnel.wait("without authentication")
    tunnel.wait("is up")
