"""The examples in deploy/wan with real programs: federation, remote_write, and 180 days of retention."""

import json
import re
import shlex
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from conch.operate.monitoring.rules.shipped_alerts import DEFAULT_JOBS
from conch.operate.tunnel.command import tunnel as tunnel_command
from tests.support.debian import debian_environment, debian_tool
from tests.support.ports import free_port

pytestmark = pytest.mark.slow
EXAMPLES = Path(__file__).parents[3] / "deploy" / "wan"
TIMEOUT_S = 60
DAY_S = 86_400


class GpuExporter(BaseHTTPRequestHandler):
    scrapes = 0

    def do_GET(self) -> None:
        GpuExporter.scrapes += 1
        body = f'DCGM_FI_DEV_GPU_UTIL{{gpu="0"}} 42\nunwanted 1\nclock {time.time()}\n'.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def exporter() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), GpuExporter)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., "subprocess.Popen[bytes]"]]:
    started: list[subprocess.Popen[bytes]] = []

    def run(*command: str) -> "subprocess.Popen[bytes]":
        with (tmp_path / f"{len(started)}.log").open("wb") as log:
            started.append(subprocess.Popen(command, stdout=log, stderr=log, env=debian_environment()))
        return started[-1]

    yield run
    for process in started:
        process.terminate()
        process.wait(TIMEOUT_S)


def get(port: int, path: str, **parameters: str) -> Any:
    url = f"http://127.0.0.1:{port}{path}?{urllib.parse.urlencode(parameters)}"
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as reply:
        return json.load(reply)["data"]["result"]


def until(read: Callable[[], Any]) -> Any:
    """Return the first result that is not empty."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            if result := read():
                return result
        except OSError:
            pass
        assert time.monotonic() < deadline, "no result in time"
        time.sleep(0.2)


def until_inserted(store: int) -> None:
    """Wait until the store has samples. A query before that would be answered from its cache for ten seconds."""

    def inserted() -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{store}/metrics", timeout=TIMEOUT_S) as reply:
            counts = re.findall(r"^vm_rows_inserted_total\{.*\} (\d+)", reply.read().decode(), re.MULTILINE)
        return sum(map(int, counts)) > 0

    until(inserted)
    time.sleep(2)  # they are found a second later


def adapted(name: str, folder: Path, ports: dict[int, int]) -> Path:
    """Write an example with other ports and a short scrape interval."""
    text = (EXAMPLES / name).read_text().replace("15s", "500ms")
    text = re.sub(r"localhost:(\d+)", lambda match: f"127.0.0.1:{ports.get(int(match[1]), 1)}", text)
    (folder / name).write_text(text)
    return folder / name


def prometheus(config: Path, port: int) -> list[str]:
    data = config.with_suffix(".data")
    flags = [f"--config.file={config}", f"--storage.tsdb.path={data}", f"--web.listen-address=127.0.0.1:{port}"]
    # A store that is not there delays the end of Prometheus otherwise.
    return [str(debian_tool("prometheus")), *flags, "--storage.remote.flush-deadline=1s"]


def victoria_metrics(folder: Path, port: int) -> list[str]:
    """Return the command of the service file, with another folder and port."""
    text = (EXAMPLES / "victoria-metrics.service").read_text()
    command = re.search(r"ExecStart=((?:.*\\\n)*.*)", text)
    assert command
    _, *flags = shlex.split(command[1].replace("\\\n", " "))
    changes = {"-storageDataPath": str(folder / "store"), "-httpListenAddr": f"127.0.0.1:{port}"}
    flags = [f"{name}={changes.get(name, value)}" for name, _, value in (flag.partition("=") for flag in flags)]
    # Queries see samples of the last 30 seconds, too.
    return [str(debian_tool("victoria-metrics")), *flags, "-search.latencyOffset=0s"]


@pytest.mark.parametrize("name", ["remote-write.yml", "federation.yml"])
def test_prometheus_accepts_the_configuration(name: str) -> None:
    command = [str(debian_tool("promtool")), "check", "config", str(EXAMPLES / name)]
    done = subprocess.run(command, capture_output=True, text=True, env=debian_environment())
    assert done.returncode == 0, done.stderr


def test_the_central_prometheus_federates_selected_series(
    tmp_path: Path, exporter: int, start: Callable[..., Any]
) -> None:
    site, central = free_port(), free_port()
    start(*prometheus(adapted("remote-write.yml", tmp_path, {9400: exporter}), site))
    start(*prometheus(adapted("federation.yml", tmp_path, {9091: site}), central))
    [series] = until(lambda: get(central, "/api/v1/query", query="DCGM_FI_DEV_GPU_UTIL"))
    assert series["metric"]["site"] == "gpu1"
    assert series["metric"]["job"] == "gpu-exporter"
    assert re.fullmatch(DEFAULT_JOBS, series["metric"]["job"])
    assert series["metric"]["via"] == "gpu1"
    assert series["value"][1] == "42"
    assert get(central, "/api/v1/query", query="unwanted") == []


def test_samples_of_an_outage_reach_the_store(tmp_path: Path, exporter: int, start: Callable[..., Any]) -> None:
    site, store = free_port(), free_port()
    command = victoria_metrics(tmp_path, store)
    running = start(*command)
    start(*prometheus(adapted("remote-write.yml", tmp_path, {9400: exporter, 8428: store}), site))

    def moments() -> list[float]:
        series = get(store, "/api/v1/query", query="clock[10m]")
        assert all(entry["metric"]["site"] == "gpu1" for entry in series)
        return [moment for entry in series for moment, _ in entry["values"]]

    until_inserted(store)
    until(moments)
    running.terminate()
    running.wait(TIMEOUT_S)
    outage, scrapes = time.time(), GpuExporter.scrapes
    until(lambda: GpuExporter.scrapes >= scrapes + 6)
    end = time.time()
    start(*command)
    until_inserted(store)
    until(lambda: [moment for moment in moments() if moment > end + 1])
    until(lambda: len([moment for moment in moments() if outage < moment < end]) >= 3)


def test_the_store_keeps_180_days(tmp_path: Path, start: Callable[..., Any]) -> None:
    store = free_port()
    start(*victoria_metrics(tmp_path, store))
    now = time.time()
    lines = "".join(f'old{{days="{days}"}} 1 {int((now - days * DAY_S) * 1000)}\n' for days in (1, 179, 182))
    url = f"http://127.0.0.1:{store}/api/v1/import/prometheus"
    until(lambda: urllib.request.urlopen(urllib.request.Request(url, lines.encode()), timeout=TIMEOUT_S))
    until_inserted(store)

    def days() -> set[str]:
        series = get(store, "/api/v1/query", query="count_over_time(old[200d])")
        return {entry["metric"]["days"] for entry in series}

    assert until(lambda: days() if len(days()) >= 2 else set()) == {"1", "179"}


@pytest.mark.parametrize("name", ["remote-write.yml", "federation.yml", "conch-tunnel.service"])
def test_the_tunnels_of_the_examples_have_valid_flags(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = (EXAMPLES / name).read_text().replace("\n# ", " ")
    match = re.search(r"[^\s=]+@\S+ --forward \S+(?: --probe-path=[^\s.]+)?", text)
    assert match, text
    with pytest.raises(SystemExit):
        tunnel_command([*match[0].split(), f"--ssh={debian_tool('ssh')}", "--identity=missing"])
    assert "--identity: the file missing does not exist" in capsys.readouterr().err
