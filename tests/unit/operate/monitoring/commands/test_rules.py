import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from conch.base.durations import parse_prometheus_duration
from conch.base.yaml_documents import dump_documents, load_documents
from conch.operate.alerts.configuration import DEFAULT_DEDUPLICATE_S
from conch.operate.monitoring.commands.prove import proof_progress
from conch.operate.monitoring.commands.rules import rules
from conch.operate.monitoring.rules.rule import rule_file
from conch.operate.monitoring.rules.shipped_alerts import rule_groups
from conch.operate.monitoring.rules.thresholds import Thresholds
from conch.operate.monitoring.rules.user_rules import group_faults, read_rules
from tests.support.alert_proofs import rules_of
from tests.support.debian import debian_tool
from tests.unit.operate.monitoring.rules.test_analysis import QPS_ARTICLE

SOUND = """
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata: {name: mine}
spec:
  groups:
    - name: mine
      rules:
        - record: mine:queue:ratio
          expr: rate(nv_inference_queue_duration_us[1m]) / rate(nv_inference_compute_infer_duration_us[1m])
        - alert: Waiting
          expr: mine:queue:ratio{model=~"resnet|bert"} > 3
          for: 2m
"""


@pytest.fixture
def promtool(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = debian_tool("promtool").parent
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def proved(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, list[dict]]:
    path = tmp_path / "rules.yaml"
    path.write_text(text)
    status = rules(["prove", str(path), "--json", *flags])
    return status, json.loads(capsys.readouterr().out)


def test_the_alert_of_the_article_never_fires(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, [_, alert] = proved(QPS_ARTICLE, tmp_path, capsys)
    assert status == 1
    assert (alert["rule"], alert["verdict"], alert["line"]) == ("TritonModelQpsOverflow", "never fires", 7)
    assert alert["witness"] == []


def test_series_that_fire_a_sound_alert_are_found(
    promtool: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, [record, alert] = proved(SOUND, tmp_path, capsys)
    assert (status, record["verdict"], alert["verdict"]) == (0, "ok", "fires")
    assert {series["series"].partition("{")[0] for series in alert["witness"]} == {
        "nv_inference_queue_duration_us",
        "nv_inference_compute_infer_duration_us",
    }
    assert 'model="resnet"' in alert["witness"][0]["series"]


@pytest.mark.parametrize(
    "expr",
    [
        "predict_linear(conch_queue_depth[5m], 600) > 100",
        "absent(up{job='conch'})",
        "histogram_quantile(0.9, sum by (le) (rate(conch_queue_duration_seconds_bucket[2m]))) > 5",
        "increase(conch_process_restarts_total[10m]) > 3",
        "conch_model_ready == 0 unless on (instance) up == 0",
        "node_load1 > 4",
    ],
)
def test_series_of_many_forms_are_found(
    expr: str, promtool: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, [alert] = proved(f'- alert: A\n  expr: "{expr}"\n  for: 1m\n', tmp_path, capsys)
    assert (status, alert["verdict"]) == (0, "fires")


def test_a_contradiction_of_values_never_fires(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, [alert] = proved("- {alert: A, expr: conch_queue_depth > 5 < 3}", tmp_path, capsys)
    assert (status, alert["verdict"]) == (1, "never fires")


def test_without_series_that_fire_it_an_alert_is_not_found(
    promtool: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, [alert] = proved("- {alert: A, expr: count(conch_queue_depth) > 100}", tmp_path, capsys)
    assert (status, alert["verdict"]) == (0, "not found")


@pytest.mark.slow
def test_a_division_by_zero_is_not_taken_for_a_witness(
    promtool: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (
        "- {alert: A, for: 1m, expr: errors / requests > 0.5}\n- {alert: B, for: 1m, expr: node_load1 / (x_up * 0) > 1}"
    )
    status, [ratio, infinite] = proved(text, tmp_path, capsys)
    assert (status, ratio["verdict"], infinite["verdict"]) == (0, "fires", "doubtful")
    values = {series["series"].partition("{")[0]: series["values"].partition("x")[0] for series in ratio["witness"]}
    assert float(values["requests"]) != 0
    assert "division by zero" in infinite["detail"]


def test_the_time_of_a_search_is_limited(promtool: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "- {alert: A, for: 1w, expr: count(conch_queue_depth) > 100}"
    status, [alert] = proved(text, tmp_path, capsys, "--time-limit", "0.02", "--jobs", "1")
    assert (status, alert["verdict"]) == (0, "not found")
    assert alert["detail"] == "the search ended after 0.02 s (--time-limit)"


def test_metrics_of_a_counter_file_are_declared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "- {alert: A, for: 5m, expr: DCGM_FI_DEV_FB_TOTAL > 40000}"
    status, [alert] = proved(text, tmp_path, capsys, "--no-search")
    assert (status, alert["verdict"]) == (1, "never fires")
    assert "if your counter file names it, give --metric DCGM_FI_DEV_FB_TOTAL" in alert["problems"][0]["message"]
    status, [alert] = proved(text, tmp_path, capsys, "--no-search", "--metric", "DCGM_FI_DEV_FB_TOTAL")
    assert (status, alert["verdict"]) == (0, "not searched")


def test_progress_is_a_line_every_few_seconds_without_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter((0.0, 1.0, 6.0, 6.0, 7.0, 20.0))
    monkeypatch.setattr(
        "conch.operate.monitoring.commands.prove.time", SimpleNamespace(monotonic=lambda: next(seconds))
    )
    with proof_progress(4) as advance:
        for name in "abcd":
            advance(name)
    assert capsys.readouterr().err == "2 of 4 rules proved, b last\n"


def test_labels_of_a_scrape_configuration_are_declared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "- {alert: A, expr: 'conch_queue_depth{team=\"a\"} > 5'}"
    status, [alert] = proved(text, tmp_path, capsys, "--no-search")
    assert (status, alert["verdict"], alert["problems"][0]["code"]) == (0, "doubtful", "unknown-label")
    status, [alert] = proved(text, tmp_path, capsys, "--no-search", "--target-label", "team")
    assert (status, alert["verdict"]) == (0, "not searched")


def test_an_error_of_promtool_is_shown(promtool: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "- alert: A\n  expr: conch_queue_depth > 5\n  annotations: {summary: '{{ .Nothing'}\n"
    status, [alert] = proved(text, tmp_path, capsys)
    assert (status, alert["verdict"]) == (1, "invalid")
    assert "promtool" not in alert["detail"]
    assert alert["detail"]


def test_without_promtool_nothing_is_searched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    path = tmp_path / "rules.yaml"
    path.write_text(SOUND)
    assert rules(["prove", str(path)]) == 0
    output = capsys.readouterr().out
    assert "not searched" in output
    assert "apt-get install prometheus" in output


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "rules.yaml:1: invalid YAML"),
        ("a: b", "has no rules"),
        ("", "rules.yaml has no rules (groups, or a PrometheusRule): there is nothing to prove\n"),
        (None, "rules.yaml': No such file or directory\n"),
    ],
)
def test_a_file_without_rules_is_refused(
    text: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rules.yaml"
    if text is not None:
        path.write_text(text)
    assert rules(["prove", str(path)]) == 2
    assert message in capsys.readouterr().err


def test_rules_are_written_with_thresholds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rules.yaml"
    assert rules(["prometheus", "--queue-time", "0.25", "--jobs", "mine", "--output", str(path)]) == 0
    text = path.read_text()
    assert "> 0) > 0.25\n" in text
    assert 'up{job=~"mine"} == 0' in text
    assert rules(["operator", "--label", "release=kps", "--namespace", "monitoring"]) == 0
    [document] = load_documents(capsys.readouterr().out)
    assert document.value["metadata"] == {
        "name": "conch",
        "labels": {"app.kubernetes.io/name": "conch", "release": "kps"},
        "namespace": "monitoring",
    }


def test_the_list_has_every_alert(capsys: pytest.CaptureFixture[str]) -> None:
    assert rules(["list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert "ConchQueueTimeHigh" in {index["alert"] for index in listed}
    assert all(index["fires"] and index["near_misses"] for index in listed)
    assert rules(["list"]) == 0
    assert "ConchQueueTimeHigh" in capsys.readouterr().out


@pytest.mark.parametrize("flags", [["prometheus", "--p99", "-1"], ["operator", "--label", "x"], ["prove"]])
def test_invalid_options_are_refused(flags: list[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        rules(flags)
    assert raised.value.code == 2


@pytest.mark.parametrize(
    ("flag", "remedy"),
    [
        ("--objective=99.9", "99.9 is not a share between 0 and 1, e.g. 0.999"),
        ("--objective=1", "1 is not a share between 0 and 1"),
        ("--gpu-idle=30", "30 is not a share between 0 and 1"),
        ("--p99=0", "0 is not a positive number of seconds"),
        ("--restarts=-1", "-1 is not a positive count"),
        ("--gpu-temperature=8500", "8500 is not a temperature between 0 and 200"),
        ("--ttft=two", "'two' is not a positive number of seconds"),
        ("--ttft=inf", "inf is not a positive number of seconds"),
    ],
)
def test_thresholds_out_of_range_are_refused(flag: str, remedy: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        rules(["prometheus", flag])
    assert raised.value.code == 2
    assert remedy in capsys.readouterr().err


@pytest.mark.parametrize("jobs", ["conch(", "(?=a)"])
def test_an_invalid_expression_of_jobs_is_refused(jobs: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert rules(["prometheus", "--jobs", jobs]) == 2
    assert f"--jobs '{jobs}' is not a valid regular expression" in capsys.readouterr().err


def test_quotes_in_jobs_are_escaped(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    assert rules(["prometheus", "--jobs", r'a"b|c\.d', "--output", str(path)]) == 0
    promtool = debian_tool("promtool")
    subprocess.run([promtool, "check", "rules", path], check=True, capture_output=True)
    assert r'up{job=~"a\"b|c\\.d"} == 0' in path.read_text()


@pytest.mark.parametrize("url", ["127.0.0.1:9096", "", "http://", "http://a:b/", "http://a b/"])
def test_an_invalid_webhook_is_refused(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert rules(["alertmanager", "--webhook", url]) == 2
    assert f"--webhook '{url}' is not valid" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--name", "A B"], "'A B' is not a valid name"),
        (["--namespace", "A B"], "'A B' is not a valid namespace"),
        (["--namespace", "a.b"], "'a.b' is not a valid namespace"),
        (["--label", "release=a b"], "'release=a b' is not a valid label"),
    ],
)
def test_names_that_kubernetes_refuses_are_refused(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        rules(["operator", *flags])
    assert raised.value.code == 2
    assert message in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "missing" / "rules.yaml"
    for command in ("prometheus", "operator", "alertmanager", "list"):
        assert rules([command, "--output", str(path)]) == 1
        expected = f"conch rules {command}: cannot write {path}: No such file or directory\n"
        assert capsys.readouterr().err == expected


def test_critical_alerts_repeat_after_the_time_of_deduplication(capsys: pytest.CaptureFixture[str]) -> None:
    assert rules(["alertmanager"]) == 0
    [document] = load_documents(capsys.readouterr().out)
    route = document.value["route"]
    repeats = [parse_prometheus_duration(routing["repeat_interval"]) for routing in (route, *route["routes"])]
    assert min(repeats) > DEFAULT_DEDUPLICATE_S


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("  - alrt: A\n    expr: up == 0\n", ["line 4: unknown key 'alrt'; did you mean 'alert'?"]),
        ("  - alert: A\n    exp: up == 0\n", ["line 5: unknown key 'exp'; did you mean 'expr'?"]),
        ("  - alert: A\n    expr: up == 0\n    fr: 5m\n", ["line 6: unknown key 'fr'; did you mean 'for'?"]),
        ("  - alert: A\n    expr: up == 0\n    team: x\n", ["line 6: unknown key 'team'; a rule has alert, record"]),
        ("  - alert: A\n", ["line 4: 'expr' is missing"]),
        ("  - expr: up == 0\n", ["line 4: 'alert' or 'record' is missing"]),
        ("  - {alert: A, record: B, expr: up}\n", ["line 4: both 'alert' and 'record'"]),
        ("  - alert: A\n    expr: up == 0\n    for: soon\n", ["line 6: for: 'soon' is not a valid duration"]),
        ("  - alert: A\n    expr: []\n", ["line 5: 'expr' is not a query"]),
    ],
)
def test_rules_that_prometheus_refuses_are_invalid(
    text: str, faults: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head = "groups:\n- name: g\n  rules:\n"
    status, [fault, sound] = proved(
        head + text + "  - {alert: Down, for: 1m, expr: up == 0}\n", tmp_path, capsys, "--no-search"
    )
    assert (status, fault["verdict"], sound["verdict"]) == (1, "invalid", "not searched")
    messages = [problem["message"] for problem in fault["problems"]]
    assert messages[0].startswith(f"line {fault['line']}: ")
    assert [message.startswith(start) for message, start in zip(messages, faults, strict=True)] == [True], messages


DURATIONS = ["0", "0m", "0s", "5m0s", "1h0m", "1y2w", "1500ms", "292y", "", "60", "1.5h", "1m1h", "-5m", " 5m", "300y"]


@pytest.mark.parametrize("text", DURATIONS)
def test_durations_are_those_that_prometheus_accepts(promtool: None, text: str, tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    rule = {"alert": "A", "expr": "up == 0", "for": text, "keep_firing_for": text}
    for keys in ("for",), ("keep_firing_for",), ("interval",):
        group = {"name": "g", "rules": [{key: value for key, value in rule.items() if key in ("alert", "expr", *keys)}]}
        if keys == ("interval",):
            group["interval"] = text
        path.write_text(dump_documents([{"groups": [group]}]))
        known = subprocess.run(["promtool", "check", "rules", str(path)], check=False, capture_output=True, text=True)
        if "field keep_firing_for not found" in known.stderr:
            continue  # promtool before 2.42 does not know it
        [document] = load_documents(path.read_text())
        faults = [*read_rules(document)[0].faults, *group_faults(document)]
        assert (not faults) is (known.returncode == 0), (keys, known.stderr)


def test_invalid_promql_has_a_position(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, [alert] = proved("- {alert: A, expr: 'up == 0 oops'}", tmp_path, capsys, "--no-search")
    assert alert["verdict"] == "invalid"
    assert alert["problems"][0]["message"] == "invalid PromQL at column 9, 'oops'"
    _, [alert] = proved("- {alert: A, expr: avg_over_time(up)}", tmp_path, capsys, "--no-search")
    assert alert["problems"][0]["message"].startswith("invalid PromQL at column 1, 'avg_over_time(up)': expected type")
    _, [alert] = proved("- alert: A\n  expr: |\n    up\n    == 0 oops\n", tmp_path, capsys, "--no-search")
    assert "at line 2, column 6 of the expression, 'oops'" in alert["problems"][0]["message"]


@pytest.mark.slow
def test_the_shipped_rules_are_proved(promtool: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    groups = rules_of(
        next(alert for group in rule_groups(Thresholds()) for alert in group.alerts if "Overload" in alert.name),
        rule_groups(Thresholds()),
    )
    status, verdicts = proved(dump_documents([rule_file(groups)]), tmp_path, capsys)
    assert status == 0
    assert {entry["rule"]: entry["verdict"] for entry in verdicts}["ConchOverloadPredicted"] == "fires"
    assert verdicts[-1]["witness"]


def test_output_stops_quietly_with_its_reader(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text("- {alert: Down, expr: up == 0}\n" * 2000)
    command = [sys.executable, "-m", "conch", "rules", "prove", "--json", "--no-search", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.read(1)
        process.stdout.close()
        errors = process.stderr.read()
    assert (first, errors, process.returncode) == (b"[", b"", 141)
