"""Metrics across a WAN with delay, loss and a cut: the gap in Prometheus' data is bounded by that of the cut.

The exporter and sshd run in one network namespace, Prometheus and `conch tunnel` in another. `CONCH_WAN_CUT_S` sets the
duration of the cut.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from conch.operate.tunnel.ssh_command import Forward, TunnelSettings
from tests.operate.tunnel.namespaces import FAR, cable
from tests.operate.tunnel.sshd import Sshd
from tests.support.debian import debian_environment, debian_tool

CUT_S = float(os.environ.get("CONCH_WAN_CUT_S", "8"))
TIMEOUT_S = 60
SSHD, WAN, EXPORTER, LOCAL, STATE, PROMETHEUS = 2200, 2222, 9400, 9401, 9405, 9090
SCRAPE_S = 0.5
# Of a machine that does other things: it delays scrapes and the start of ssh.
SLACK_S = 30.0

_EXPORTER = f"""
import time
from prometheus_client import Gauge, start_http_server
Gauge("gpu_time", "Seconds.").set_function(time.time)
start_http_server({EXPORTER}, addr="127.0.0.1")
time.sleep(3600)
"""
_QUERY = """
import sys, urllib.parse, urllib.request
url = "http://127.0.0.1:%d/api/v1/query?" + urllib.parse.urlencode({"query": sys.argv[1]})
print(urllib.request.urlopen(url, timeout=30).read().decode())
"""
SETTINGS = TunnelSettings(
    target=f"root@{FAR}",
    forwards=(Forward.parse(f"{LOCAL}:127.0.0.1:{EXPORTER}"),),
    name="gpu1",
    keepalive_s=1,
    keepalive_count=2,
    connect_timeout_s=3,
    min_backoff_s=0.2,
    max_backoff_s=2.0,
)


class Programs:
    """Starts programs with log files, and ends them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, prefix: Sequence[str], *command: str) -> subprocess.Popen[bytes]:
        with self.log_file(name).open("wb") as log:
            process = subprocess.Popen([*prefix, *command], stdout=log, stderr=log, env=debian_environment())
        self._started.append(process)
        return process

    def log_file(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def stop(self) -> None:
        for process in reversed(self._started):
            process.terminate()
            process.wait(TIMEOUT_S)


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    programs = Programs(tmp_path)
    yield programs
    programs.stop()


def wait_for(condition: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, log.read_text(errors="replace")
        time.sleep(0.2)


@pytest.mark.slow
def test_the_gap_in_the_data_is_that_of_the_cut(tmp_path: Path, programs: Programs) -> None:
    prometheus = debian_tool("prometheus")
    with ExitStack() as stack:
        wire = stack.enter_context(cable())
        sshd = Sshd(tmp_path / "sshd", address=FAR, port=SSHD, prefix=wire.far)
        stack.callback(sshd.stop)
        stack.callback(programs.stop)  # before the namespaces end
        sshd.start()
        key = sshd.host_key.with_suffix(".pub").read_text()
        sshd.known_hosts.write_text(f"[{FAR}]:{WAN} {key}")
        python = sys.executable
        programs.start("exporter", wire.far, python, "-c", _EXPORTER)
        wan = ["tests.operate.tunnel.wan_proxy", FAR, str(WAN), FAR, str(SSHD), "0.04", "0.02"]
        programs.start("proxy", wire.far, python, "-m", *wan)
        start_tunnel(programs, wire.near, sshd)
        start_prometheus(programs, wire.near, prometheus, tmp_path)

        def query(text: str) -> list[dict[str, Any]]:
            command = [*wire.near, python, "-c", _QUERY % PROMETHEUS, text]
            done = subprocess.run(command, capture_output=True, text=True)
            return list(json.loads(done.stdout)["data"]["result"]) if done.returncode == 0 else []

        def samples() -> list[float]:
            series = query("gpu_time[10m]")
            return [moment for moment, _ in series[0]["values"]] if series else []

        tunnel_log = programs.log_file("tunnel")
        wait_for(lambda: len(samples()) >= 4, tunnel_log)
        wire.cut()
        cut = time.time()
        time.sleep(CUT_S)
        before = len(samples())
        wire.repair()
        repaired = time.time()
        wait_for(lambda: len(samples()) >= before + 4, tunnel_log)
        moments = samples()
        gap, began = max((later - earlier, earlier) for earlier, later in pairwise(moments))
        assert began <= cut + SCRAPE_S + SLACK_S
        assert CUT_S - 2 * SCRAPE_S < gap <= repaired - cut + SETTINGS.max_outage_s + 2 * SCRAPE_S + SLACK_S
        # The state of the tunnel tells the same.
        assert value(query("min_over_time(conch_tunnel_up[10m])")) == 0
        wait_for(lambda: value(query("conch_tunnel_up")) == 1, tunnel_log)
        assert (value(query("conch_tunnel_connects_total")) or 0) >= 2
        assert value(query("sum(conch_tunnel_failures_total)")) >= 1
        print(f"cut {repaired - cut:.1f} s, gap {gap:.1f} s")


def value(result: list[dict[str, Any]]) -> float | None:
    return float(result[0]["value"][1]) if result else None


def start_tunnel(programs: Programs, prefix: Sequence[str], sshd: Sshd) -> None:
    own = SETTINGS
    programs.start(
        "tunnel",
        prefix,
        *(sys.executable, "-m", "conch", "tunnel", own.target, f"--forward={own.forwards[0]}", f"--name={own.name}"),
        *(f"--ssh={debian_tool('ssh')}", f"--ssh-port={WAN}", f"--metrics-port={STATE}"),
        *(f"--identity={sshd.identity}", f"--known-hosts={sshd.known_hosts}"),
        *(f"--keepalive-secs={own.keepalive_s}", f"--keepalive-count={own.keepalive_count}"),
        *(f"--connect-timeout-secs={own.connect_timeout_s}", "--probe-interval-secs=0.5"),
        *(f"--min-backoff-secs={own.min_backoff_s}", f"--max-backoff-secs={own.max_backoff_s}"),
    )


def start_prometheus(programs: Programs, prefix: Sequence[str], program: Path, folder: Path) -> None:
    config = folder / "prometheus.yml"
    jobs = [
        {"job_name": name, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
        for name, port in (("gpu", LOCAL), ("tunnel", STATE))
    ]
    intervals = {"scrape_interval": f"{SCRAPE_S * 1000:.0f}ms", "scrape_timeout": f"{SCRAPE_S * 1000:.0f}ms"}
    config.write_text(json.dumps({"global": intervals, "scrape_configs": jobs}))  # JSON is YAML
    flags = [f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}"]
    programs.start("prometheus", prefix, str(program), *flags, f"--web.listen-address=127.0.0.1:{PROMETHEUS}")
