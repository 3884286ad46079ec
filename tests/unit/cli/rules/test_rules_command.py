import json
import os
from pathlib import Path

import pytest

from conch.cli.rules.command import rules
from conch.monitoring.yaml_documents import load_documents
from tests.debian import debian_tool
from tests.unit.monitoring.rules.test_analysis import QPS_ARTICLE

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
    assert {each["series"].partition("{")[0] for each in alert["witness"]} == {
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


def test_a_contradiction_of_values_finds_no_series(
    promtool: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, [alert] = proved("- {alert: A, expr: conch_queue_depth > 5 < 3}", tmp_path, capsys)
    assert (status, alert["verdict"]) == (0, "not found")


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
    ("text", "message"), [("a: [", "rules.yaml:1: invalid YAML"), ("a: b", "has no rules"), (None, "No such file")]
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
    assert "ConchQueueTimeHigh" in {each["alert"] for each in listed}
    assert all(each["fires"] and each["near_misses"] for each in listed)
    assert rules(["list"]) == 0
    assert "ConchQueueTimeHigh" in capsys.readouterr().out


@pytest.mark.parametrize("flags", [["prometheus", "--p99", "-1"], ["operator", "--label", "x"], ["prove"]])
def test_invalid_options_are_refused(flags: list[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        rules(flags)
    assert raised.value.code == 2
