"""`conch alerts`: a real Alertmanager on one side, strict servers of the chat services on the other."""

import base64
import json
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from conch.domain.metrics.catalog import areas
from tests.server.alert_receiver import TIMEOUT_S, Receiver, alertmanager, receiver, until
from tests.support.chat_services import CHECKS, SECRET, TOKEN, ChatServer, Received, Wrong
from tests.support.debian import debian_environment, debian_tool
from tests.support.small_disk import fill, small_disk
from tests.unit.operate.alerts.webhooks import webhook

pytestmark = pytest.mark.slow

SIGNED = ("dingtalk", "feishu")


def config_for(servers: dict[str, ChatServer]) -> str:
    lines = ["targets:"]
    for kind in servers:
        secret = ", secret: {env: TEST_SECRET}" if kind in SIGNED else ""
        lines.append(f"  {kind}: {{type: {kind}, url: {{env: TEST_URL_{kind}}}{secret}}}")
    return "\n".join(lines) + "\n"


def environment_for(servers: dict[str, ChatServer]) -> dict[str, str]:
    return {"TEST_SECRET": SECRET} | {f"TEST_URL_{kind}": server.url for kind, server in servers.items()}


def names_in(request: Received) -> list[str]:
    return [f"{alert['labels']['alertname']}:{alert['status']}" for alert in request.json()["alerts"]]


def delivered(server: ChatServer) -> Counter[str]:
    return Counter(name for request in server.accepted for name in names_in(request))


def conch_alerts(*arguments: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "conch", "alerts", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=TIMEOUT_S, check=False)


def test_alertmanager_reaches_each_service(tmp_path: Path) -> None:
    with ExitStack() as stack:
        servers = {kind: stack.enter_context(ChatServer(kind)) for kind in CHECKS}
        config = config_for(servers) + "auth: {bearer: {file: token}}\n"
        (tmp_path / "token").write_text("receiver-token-1\n")
        running = stack.enter_context(receiver(tmp_path, config, environment_for(servers)))
        snippet = conch_alerts(
            "config", "--config", str(tmp_path / "receiver.yaml"), "--url", running.url,
            environment={**debian_environment(), **environment_for(servers)},
        )  # fmt: skip
        assert snippet.returncode == 0, snippet.stderr
        text = snippet.stdout.replace("group_wait: 30s", "group_wait: 0s\n  group_interval: 1s")
        post = stack.enter_context(alertmanager(tmp_path, text))
        alert = {"labels": {"alertname": "QueueTime", "model": "detector"}, "annotations": {"summary": "a <b> & 排队"}}
        post([alert])
        for server in servers.values():
            server.wait(lambda server: len(server.accepted) == 1)
        post([{**alert, "startsAt": "2026-01-01T00:00:00Z", "endsAt": "2026-01-01T00:01:00Z"}])
        for kind, server in servers.items():
            server.wait(lambda server: len(server.accepted) >= 2)
            assert server.refused == [], kind
            texts = [json.dumps(request.json(), ensure_ascii=False) for request in server.accepted]
            assert "[FIRING:1] QueueTime (model=detector)" in texts[0]
            assert "排队" in texts[0]
            assert "[RESOLVED:1] QueueTime (model=detector)" in texts[-1]
        until(lambda: running.metric("conch_alerts_queued", target="slack") == 0)
        assert running.metric("conch_alerts_delivered_total", target="slack") >= 2


def test_an_outage_with_sigkill_loses_and_duplicates_nothing(tmp_path: Path) -> None:
    server = ChatServer("generic")
    config = f"targets: {{hook: {{type: generic, url: '{server.url}'}}}}\n"
    port = server.port
    server._server.server_close()  # the target is down
    with receiver(tmp_path, config) as first:
        for number in range(10):
            assert first.post(webhook(f"A{number}", group=str(number)))[0] == 200
        until(lambda: (first.metric("conch_alerts_failed_attempts_total", target="hook") or 0) >= 2)
        first.kill()
    with receiver(tmp_path, config) as second:
        assert second.metric("conch_alerts_queued", target="hook") == 10
        assert second.post(webhook("A0", group="0"))[0] == 200  # Alertmanager repeats one, and has a new one
        assert second.post(webhook("B"))[0] == 200
        second.kill()
    with ChatServer("generic", port) as server, receiver(tmp_path, config) as third:
        server.wait(lambda server: len(server.accepted) == 11)
        until(lambda: third.metric("conch_alerts_queued", target="hook") == 0)
        assert third.post(webhook("A0", group="0"))[0] == 200
        assert third.metric("conch_alerts_duplicates_total", target="hook") == 1
        expected = Counter([*(f"A{number}:firing" for number in range(10)), "B:firing"])
        assert delivered(server) == expected


def test_sigkill_during_a_delivery_repeats_at_most_this_message_with_its_key(tmp_path: Path) -> None:
    with ChatServer("generic") as server:
        config = f"targets: {{hook: {{type: generic, url: '{server.url}'}}}}\n"
        killed: list[Receiver] = []

        def kill(_: Received) -> object:
            killed[0].kill()
            return {}

        server.override = kill
        with receiver(tmp_path, config) as first:
            killed.append(first)
            first.post(webhook("A", "B"))
            server.wait(lambda server: len(server.accepted) == 1)
        server.override = None
        with receiver(tmp_path, config) as second:
            second.post(webhook("C"))
            server.wait(lambda server: len(server.accepted) == 3)
            until(lambda: second.metric("conch_alerts_queued", target="hook") == 0)
    assert [names_in(request) for request in server.accepted] == [["A:firing", "B:firing"]] * 2 + [["C:firing"]]
    keys = [request.headers["idempotency-key"] for request in server.accepted]
    assert keys[0] == keys[1] != keys[2]


def refuse(secret: str, request: Received) -> object:
    raise Wrong(500, f"cannot serve {request.path} with {secret}, see {TOKEN}")


def test_nothing_that_the_receiver_writes_has_a_secret(tmp_path: Path) -> None:
    """All services refuse, and some quote the URL; then they are down."""
    with ExitStack() as stack:
        servers = {kind: stack.enter_context(ChatServer(kind)) for kind in CHECKS}
        for kind, server in servers.items():
            server.override = partial(refuse, SECRET if kind in SIGNED else "no secret")
        running = stack.enter_context(receiver(tmp_path, config_for(servers), environment_for(servers)))
        running.post(webhook("A"))
        for server in servers.values():
            server.wait(lambda server: len(server.refused) >= 2)
        texts = [running.get("/metrics")[1]]
        environment = {**debian_environment(), **environment_for(servers)}
        test = conch_alerts("test", "--config", str(tmp_path / "receiver.yaml"), environment=environment)
        assert test.returncode == 1
        assert "cannot serve" in test.stderr
        texts += [test.stdout, test.stderr]
        for server in servers.values():
            server._server.shutdown()
            server._server.server_close()
        test = conch_alerts("test", "--config", str(tmp_path / "receiver.yaml"), environment=environment)
        assert "slack: target failed: 127.0.0.1: connection refused" in test.stderr
        command = ("test", "--config", str(tmp_path / "receiver.yaml"), "--target", "slack", "--json")
        refused = conch_alerts(*command, environment=environment)
        reason = "127.0.0.1: connection refused"
        assert json.loads(refused.stdout) == {"slack": {"verdict": "target failed", "reason": reason}}
        assert (refused.returncode, refused.stderr) == (1, "")
        texts += [test.stderr, running.log]
        assert r"target \"dingtalk\" failed: HTTP status 500: cannot serve /***" in running.log
        assert "Traceback" not in running.log
        assert running.stop() == 0
        for text in [*texts, running.log]:
            assert TOKEN not in text
            assert SECRET not in text


def test_a_full_disk_loses_and_duplicates_nothing(tmp_path: Path) -> None:
    with (
        small_disk(tmp_path / "queue", 1) as disk,
        ChatServer("generic") as server,
        receiver(tmp_path, config_for({"generic": server}), environment_for({"generic": server})) as running,
    ):
        assert running.post(webhook("A"))[0] == 200
        server.wait(lambda server: len(server.accepted) == 1)
        filler, many = fill(disk), [f"B{number}" for number in range(100)]  # more than what is left of a page
        for _ in range(10):
            assert running.post(webhook(*many))[0] == 503
        assert running.get("/-/healthy")[0] == 200
        assert running.metric("conch_alerts_refused_webhooks_total", reason="storage") == 10
        assert running.log.count("queue cannot be written") == 1
        assert "Traceback" not in running.log
        filler.unlink()
        assert running.post(webhook(*many))[0] == 200
        assert running.post(webhook("C"))[0] == 200
        server.wait(lambda server: len(delivered(server)) == 102)
        assert set(delivered(server).values()) == {1}
        assert running.log.count("queue can be written again") == 1


def test_test_messages_are_accepted(tmp_path: Path) -> None:
    with ExitStack() as stack:
        servers = {kind: stack.enter_context(ChatServer(kind)) for kind in CHECKS}
        (tmp_path / "receiver.yaml").write_text(config_for(servers))
        environment = {**debian_environment(), **environment_for(servers)}
        test = conch_alerts("test", "--config", str(tmp_path / "receiver.yaml"), environment=environment)
        assert test.returncode == 0, test.stderr
        assert "feishu: feishu accepted the test message" in test.stdout
        arguments = ("test", "--config", str(tmp_path / "receiver.yaml"), "--target", "nix")
        unknown = conch_alerts(*arguments, environment=environment)
        assert (unknown.returncode, "unknown target 'nix'" in unknown.stderr) == (2, True)


def test_the_snippet_is_valid_for_alertmanager(tmp_path: Path) -> None:
    with ChatServer("slack") as server:
        text = config_for({"slack": server}) + "auth: {basic: {username: am, password: {env: TEST_SECRET}}}\n"
        (tmp_path / "receiver.yaml").write_text(text)
        environment = {**debian_environment(), **environment_for({"slack": server})}
        snippet = conch_alerts("config", "--config", str(tmp_path / "receiver.yaml"), environment=environment)
    (tmp_path / "alertmanager.yml").write_text(snippet.stdout)
    command = [str(debian_tool("amtool")), "check-config", str(tmp_path / "alertmanager.yml")]
    checked = subprocess.run(command, capture_output=True, text=True, env=debian_environment(), check=False)
    assert checked.returncode == 0, checked.stderr


def test_the_http_side(tmp_path: Path) -> None:
    config = "auth: {basic: {username: am, password: {env: TEST_SECRET}}}\nqueue: {max_alerts: 2}\n"
    config += "targets: {hook: {type: generic, url: 'http://127.0.0.1:1/'}}\n"
    config += "routes: [{match: {severity: critical}, targets: [hook]}]\n"
    good = {"Authorization": "Basic " + base64.b64encode(f"am:{SECRET}".encode()).decode()}
    bad = {"Authorization": "Basic " + base64.b64encode(b"am:wrong").decode()}
    with receiver(tmp_path, config, {"TEST_SECRET": SECRET}) as running:
        assert running.get("/-/healthy") == (200, "Healthy.\n")
        assert running.get("/")[0] == 405
        assert running.get("/other")[0] == 404
        for headers in ({}, bad, {"Authorization": "Bearer x"}, {"Authorization": "Basic %%%"}):
            assert running.post(webhook("A"), headers)[0] == 401
            assert running.post(b" " * 100_000, headers)[0] == 401  # before the body is received
        assert running.post(b"{}", good) == (
            400,
            "'version' is null; expected \"4\", the version of Alertmanager's webhooks\n",
        )
        status, text = running.post(b" " * (17 * 2**20), good)
        assert (status, "16777216 bytes" in text) == (400, True)
        assert running.post(webhook("A"), good)[0] == 200
        assert running.post(webhook("Unrouted").replace(b"critical", b"info"), good)[0] == 200
        status, text = running.post(webhook("B", "C"), good)
        assert (status, text) == (503, "the queue of hook is full; try again later\n")
        assert running.post(webhook("B"), good)[0] == 200
        assert running.metric("conch_alerts_received_total") == 3
        assert running.metric("conch_alerts_unrouted_total") == 1
        assert running.metric("conch_alerts_queued", target="hook") == 2
        assert running.metric("conch_alerts_refused_webhooks_total", reason="unauthorized") == 8
        assert running.metric("conch_alerts_refused_webhooks_total", reason="queue_full") == 1
        exposed = {line.split()[2] for line in running.get("/metrics")[1].splitlines() if line.startswith("# TYPE")}
        assert exposed == {metric.name for metric in areas()["alerts"]}
        assert running.stop() == 0
        assert r"no route matches 1 alert(s), such as \"Unrouted\"" in running.log


def test_start_failures(tmp_path: Path) -> None:
    (tmp_path / "receiver.yaml").write_text("targets: {hook: {type: generic, url: 'http://127.0.0.1:1/'}}\n")
    arguments = ("receive", "--config", str(tmp_path / "receiver.yaml"), "--queue", str(tmp_path / "queue"))
    with receiver(tmp_path, (tmp_path / "receiver.yaml").read_text()) as running:
        twice = conch_alerts(*arguments, "--port", "0", environment=debian_environment())
        assert (twice.returncode, "another process uses the queue" in twice.stderr) == (2, True)
        taken = (*arguments[:-1], str(tmp_path / "other"), "--port", str(running.port))
        busy = conch_alerts(*taken, environment=debian_environment())
        assert (busy.returncode, f"cannot listen on 127.0.0.1:{running.port}: " in busy.stderr) == (1, True)
        assert busy.stderr.endswith("; --port chooses another\n")
    missing = conch_alerts("receive", "--config", str(tmp_path / "gone.yaml"), environment=debian_environment())
    assert (missing.returncode, "gone.yaml: No such file" in missing.stderr) == (2, True)


def test_alertmanager_and_outages_of_receiver_and_target(tmp_path: Path) -> None:
    """The target is down, the receiver dies, Alertmanager has a further alert, then both return."""
    server = ChatServer("generic")
    server._server.server_close()
    config = f"targets: {{hook: {{type: generic, url: '{server.url}'}}}}\n"
    (tmp_path / "receiver.yaml").write_text(config)
    with ExitStack() as stack:
        first = stack.enter_context(receiver(tmp_path, config))
        snippet = (
            "route: {receiver: conch, group_by: [alertname], group_wait: 0s, group_interval: 1s, repeat_interval: 1s}\n"
            f"receivers: [{{name: conch, webhook_configs: [{{url: '{first.url}'}}]}}]\n"
        )
        post = stack.enter_context(alertmanager(tmp_path, snippet))
        post([{"labels": {"alertname": "A"}}])
        until(lambda: first.metric("conch_alerts_queued", target="hook") == 1)
        first.kill()
        post([{"labels": {"alertname": "B"}}])
        second = stack.enter_context(receiver(tmp_path, config, port=first.port))
        until(lambda: second.metric("conch_alerts_queued", target="hook") == 2)
        server = stack.enter_context(ChatServer("generic", server.port))
        server.wait(lambda server: sum(delivered(server).values()) >= 2)
        # Alertmanager repeats both each second.
        until(lambda: (second.metric("conch_alerts_duplicates_total", target="hook") or 0) >= 4)
        until(lambda: second.metric("conch_alerts_queued", target="hook") == 0)
        assert delivered(server) == Counter({"A:firing": 1, "B:firing": 1})
