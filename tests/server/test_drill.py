"""Alerts fire on a real Prometheus and arrive through a real Alertmanager."""

import json
import re
import socket
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from conch.operate.monitoring.commands.drill import drill
from conch.operate.monitoring.commands.rules import rules
from tests.server.alert_receiver import alertmanager_address
from tests.support.models import write_identity
from tests.support.prometheus import Prometheus
from tests.support.server_process import ConchProcess

pytestmark = [pytest.mark.slow]

ROUTES = """
route: {{receiver: drill, group_by: [alertname], group_wait: 100ms, group_interval: 1s}}
receivers: [{{name: drill, webhook_configs: [{{url: "http://{address}/"}}]}}]
"""
OWN = """
groups:
  - name: own
    rules:
      - alert: Busy
        expr: rate(nv_inference_request_success[5s]) > 5
        for: 1s
      - alert: Unready
        expr: conch_model_ready == 0
      - alert: Slow
        expr: rate(nv_inference_request_success[5s]) > 5
        for: 1h
      - alert: Quiet
        expr: conch_queue_depth > 1000000
"""


@contextmanager
def system(folder: Path, rule_text: str, metrics: str = "", routed: bool = True) -> Iterator[tuple[str, str]]:
    """Prometheus and Alertmanager set up for drills; yields Prometheus's URL and the address for --listen."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    targets = [address, *([metrics] if metrics else [])]
    jobs = [{"job_name": "conch", "static_configs": [{"targets": targets}]}]
    webhook = address if routed else "127.0.0.1:9"
    with (
        alertmanager_address(folder, ROUTES.format(address=webhook)) as alertmanager,
        Prometheus(folder / "prometheus", jobs=jobs, rules=rule_text, alertmanager=alertmanager) as prometheus,
    ):
        yield prometheus.url, address


@pytest.fixture
def own_rules(tmp_path: Path) -> str:
    path = tmp_path / "rules.yaml"
    assert rules(["prometheus", "--output", str(path)]) == 0
    return path.read_text()


def drilled(
    capsys: pytest.CaptureFixture[str], prometheus: str, listen: str, *arguments: str
) -> tuple[int, dict[str, object]]:
    capsys.readouterr()
    status = drill([*arguments, "--prometheus", prometheus, "--listen", listen, "--json"])
    return status, json.loads(capsys.readouterr().out)


def stages(document: dict) -> list[str]:
    return [stage["stage"] for stage in document["stages"]]


def test_samples_fire_an_alert_and_the_webhook_arrives(
    own_rules: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with system(tmp_path, own_rules) as (prometheus, listen):
        status, document = drilled(capsys, prometheus, listen, "accelerator-error")
    assert (status, document["delivered"]) == (0, True), document
    # Without a hold time the alert is never pending.
    assert [stage for stage in stages(document) if stage != "alert pending"] == [
        "sample scraped",
        "alert firing",
        "webhook received",
    ]
    after = [stage["after_s"] for stage in document["stages"]]
    assert after == sorted(after)
    assert after[0] >= 0


def test_load_fires_an_alert(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_identity(tmp_path / "models", "echo", "FP32", 4)
    with ConchProcess(tmp_path / "models", log=tmp_path / "log") as server:
        metrics = f"127.0.0.1:{server.ports['metrics']}"
        with system(tmp_path, OWN, metrics) as (prometheus, listen):
            flags = ["--load", "echo", "--url", f"http://{server.http}", "--concurrency", "2"]
            status, document = drilled(capsys, prometheus, listen, "busy", *flags)
            assert (status, document["cause"]) == (0, "load"), document
            assert stages(document)[-2:] == ["alert firing", "webhook received"]

            status, document = drilled(capsys, prometheus, listen, "quiet", "--load", "absent", *flags[2:])
            assert status == 1
            assert "model 'absent'" in str(document["failure"])


def test_a_drill_without_an_alert_names_the_cause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_identity(tmp_path / "models", "echo", "FP32", 4)
    limits = tmp_path / "limits.yaml"
    limits.write_text("limits: [{model: echo, requests_per_second: 1, enforced: true}]\n")
    with ConchProcess(tmp_path / "models", f"--limits-file={limits}", log=tmp_path / "log") as server:
        metrics = f"127.0.0.1:{server.ports['metrics']}"
        with system(tmp_path, OWN, metrics) as (prometheus, listen):
            flags = ["--load", "echo", "--url", f"http://{server.http}", "--concurrency", "2"]
            status, document = drilled(capsys, prometheus, listen, "quiet", *flags, "--timeout", "3")
            assert status == 1
            assert re.search(
                r"was never pending within 3 s.*; \d+ of \d+ requests failed: \d+ with status 429 .*enforced limit",
                str(document["failure"]),
            )
            assert document["requests"]["429"] > document["requests"].get("200", 0)  # type: ignore[index]

            status, document = drilled(capsys, prometheus, listen, "slow", *flags, "--timeout", "60")
            assert status == 1
            assert "--timeout 60 is not longer than the hold time of Slow, 3600 s" in str(document["failure"])


def test_a_command_fires_an_alert(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_identity(tmp_path / "models", "echo", "FP32", 4)
    with ConchProcess(
        tmp_path / "models", "--model-control-mode=explicit", "--load-model=echo", log=tmp_path / "log"
    ) as server:
        metrics = f"127.0.0.1:{server.ports['metrics']}"
        rule = OWN.replace("conch_model_ready == 0", "absent(conch_model_ready) or conch_model_ready == 0")
        with system(tmp_path, rule, metrics) as (prometheus, listen):
            wait_for(prometheus, "conch_model_ready")
            wait_for(prometheus, "absent(ALERTS)")  # that there was no data fired the alert
            program = (
                "import urllib.request as r; "
                f"r.urlopen(r.Request('http://{server.http}/v2/repository/models/echo/unload', b''))"
            )
            status, document = drilled(capsys, prometheus, listen, "unready", "--command", f'python3 -c "{program}"')
    assert (status, document["cause"]) == (0, "command"), document


def wait_for(prometheus: str, query: str) -> None:
    for _ in range(300):
        with urllib.request.urlopen(f"{prometheus}/api/v1/query?query={query}", timeout=60) as response:
            if json.load(response)["data"]["result"]:
                return
        time.sleep(0.2)
    pytest.fail(f"no data for {query}")


def test_a_webhook_that_does_not_arrive_is_reported(
    own_rules: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with system(tmp_path, own_rules, routed=False) as (prometheus, listen):
        status, document = drilled(capsys, prometheus, listen, "limit-changed", "--timeout", "1")
        assert status == 1
        assert "Prometheus does not scrape" in str(document["failure"]) or "pending" in str(document["failure"])
        status, document = drilled(capsys, prometheus, listen, "model-unreddy")
        assert status == 1
        assert "did you mean 'ConchModelUnready'?" in str(document["failure"])
        status, document = drilled(capsys, prometheus, listen, "target-down")
        assert "use --command" in str(document["failure"])


def test_the_configuration_for_drills_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert drill(["--config"]) == 0
    output = capsys.readouterr().out
    assert "targets: ['127.0.0.1:9098']" in output
    assert "url: 'http://127.0.0.1:9098/'" in output
