"""The configuration file: what is read, and problems with line and remedy."""

from pathlib import Path

import pytest

from conch.base.errors import ConfigError, InvalidRequest
from conch.operate.alerts.alertmanager_config import alertmanager_snippet
from conch.operate.alerts.read_configuration import read_configuration
from conch.operate.alerts.webhook import read_webhook
from tests.unit.operate.alerts.webhooks import alerts, webhook

FULL = """\
auth:
  bearer: {file: token}
queue: {max_alerts: 50, deduplicate_for: 30m, give_up_after: 2d}
targets:
  ops:
    type: dingtalk
    url: {env: TEST_DINGTALK_URL}
    secret: {file: token}
    group_by: [alertname]
    text: "{{ title }}"
  team:
    type: generic
    url: http://alertbot.svc/hook
    headers: {Authorization: {file: token}}
    body: '{"text": {{ title | tojson }}}'
    send_resolved: false
routes:
  - match: {severity: critical}
    match_re: {alertname: "A|B"}
    targets: [ops]
    continue: true
  - targets: [team, ops]
"""


@pytest.fixture(autouse=True)
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("secret-value\n")
    monkeypatch.setenv("TEST_DINGTALK_URL", "https://oapi.dingtalk.com/robot/send?access_token=abcdef")


def read(folder: Path, text: str):  # type: ignore[no-untyped-def]
    (folder / "receiver.yaml").write_text(text)
    return read_configuration(folder / "receiver.yaml")


def test_a_whole_configuration(tmp_path: Path) -> None:
    config = read(tmp_path, FULL)
    assert (config.max_alerts, config.deduplicate_s, config.give_up_s) == (50, 1800, 172_800)
    [a, c] = alerts("A", "C")
    [resolved] = alerts("A", status="resolved")
    assert [target.name for target in config.targets_of(a)] == ["ops", "team"]
    assert [target.name for target in config.targets_of(c)] == ["team", "ops"]
    assert [target.name for target in config.targets_of(resolved)] == ["ops"]
    assert config.targets["ops"].grouping(a) == "A"
    assert "secret-value" not in repr(config)
    assert "abcdef" not in repr(config)


def test_the_snippet_for_alertmanager_refers_to_the_token(tmp_path: Path) -> None:
    text = alertmanager_snippet(read(tmp_path, FULL), "http://receiver:9096/")
    assert f"credentials_file: {tmp_path / 'token'}" in text
    assert "secret-value" not in text


T = "targets:\n  t:\n    type: "
TARGETS = "targets:\n  t: {type: slack, url: {env: TEST_DINGTALK_URL}}\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "1: 'targets' is missing or empty; add at least one target"),
        ("- a", "1: the file must be a mapping"),
        ("targets: [", "line 1: invalid YAML"),
        ("a: 1\na: 2", "line 2: 'a' is given twice"),
        ("targets: {t: {type: slak}}", "1: 'type' must be one of dingtalk, feishu, wecom, slack, generic; did"),
        (T + "slack\n    urll: x", "4: unknown field 'urll'; did you mean 'url'?"),
        (T + "slack\n    url: https://slack/x", "4: 'url' must be {env: VARIABLE} or {file: PATH}, so"),
        (T + "slack\n    url: {env: TEST_UNSET}", "4: 'url' cannot be read from variable TEST_UNSET"),
        (T + "slack\n    url: {file: gone}", "4: 'url' cannot be read from file"),
        (T + "slack\n    url: {file: token}", "4: the URL is not valid; it must begin with https://"),
        (T + "generic\n    url: ftp://x", "4: the URL is not valid"),
        (TARGETS.replace("}}", "}, secret: {file: token}}"), "2: slack has no signature; remove 'secret'"),
        (TARGETS.replace("}}", "}, body: '{}'}"), "2: slack has no 'body'; use 'text' or another type"),
        (TARGETS.replace("}}", "}, text: '{{ foo }}'}"), "2: 'text': unknown variable 'foo'; the variables are"),
        (TARGETS.replace("}}", "}, text: '{{ title'}"), "2: 'text': line 1 of the template"),
        (TARGETS.replace("}}", "}, text: '{{ title | nix }}'}"), "2: 'text': line 1 of the template: No filter"),
        (TARGETS.replace("}}", "}, max_alerts: 100}"), "2: 'max_alerts' must be a number from 1 to 20"),
        (TARGETS.replace("}}", "}, ca_file: gone.pem}"), "gone.pem does not exist"),
        (T + "generic\n    url: http://x\n    body: '[\"{{ commonAnnotations.summary }}\"]'", "5: the body is not"),
        (TARGETS + "routes:\n  - targets: [u]", "4: unknown target 'u'; known are t"),
        (TARGETS + "routes:\n  - match: {a: b}", "4: the route has no 'targets'"),
        (TARGETS + "routes:\n  - targets: [t]\n    match_re: {a: '('}", "5: '(' is not a valid regular expression"),
        (TARGETS + "queue: {deduplicate_for: 1 week}", "3: 'deduplicate_for' must be a number with a unit"),
        (TARGETS + "auth: {bearer: {file: token}, basic: {username: u, password: {file: token}}}", "both"),
        (TARGETS + "auth: {bearer: my-token-value}", "3: 'bearer' must be {env: VARIABLE} or {file: PATH}"),
    ],
)  # fmt: skip
def test_problems(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read(tmp_path, text)
    assert problem in str(raised.value)
    assert str(raised.value).startswith(str(tmp_path / "receiver.yaml"))
    assert "abcdef" not in str(raised.value)
    assert "my-token-value" not in str(raised.value)


def test_unencrypted_urls_with_tokens_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_DINGTALK_URL", "http://oapi.dingtalk.com/robot/send?access_token=abcdef")
    with pytest.raises(ConfigError, match="unencrypted; begin it with https://"):
        read(tmp_path, TARGETS)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[]", "not a JSON object"),
        (b"{}", "'version' is null; expected \"4\""),
        (b'{"version": "4"}', "'alerts' is not a list"),
        (b'{"version": "4", "alerts": [1]}', "'alerts[0]' is not an object"),
        (b'{"version": "4", "alerts": [{"status": "x"}]}', "'alerts[0].status' is not"),
        (
            b'{"version": "4", "alerts": [{"status": "firing", "labels": {"a": 1}}]}',
            "'alerts[0].labels' is not",
        ),
        (b'{"version": "4", "groupKey": 1, "alerts": []}', "'groupKey' is not a string"),
    ],
)
def test_malformed_webhooks(body: bytes, problem: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        read_webhook(body)
    assert problem in str(raised.value)


def test_a_webhook_of_alertmanager() -> None:
    [alert] = read_webhook(webhook("A"))
    assert (alert.name, alert.status, alert.group_key) == ("A", "firing", "g")
    assert type(alert).from_json(alert.to_json()) == alert
