"""Every alert has a proof, and promtool confirms it."""

import subprocess
from pathlib import Path

import pytest

from conch.base.yaml_documents import dump_documents
from conch.operate.alerts.alertmanager_config import alertmanager_file
from conch.operate.monitoring.rules.rule import AlertingRule, prometheus_rule, rule_file
from conch.operate.monitoring.rules.shipped_alerts import rule_groups
from conch.operate.monitoring.rules.thresholds import Thresholds
from tests.support.alert_proofs import proof_file, rules_of
from tests.support.debian import debian_tool

STRICT = Thresholds(queue_time=0.02, failure_ratio=0.01, objective=0.99, p99=0.2, utilization=0.8, scale_up=240)
ALERTS = [
    (alert, thresholds)
    for thresholds in (Thresholds(), STRICT)
    for group in rule_groups(thresholds)
    for alert in group.alerts
]


def run_proofs(alert: AlertingRule, thresholds: Thresholds, folder: Path) -> str:
    """Run the proofs of an alert; return what promtool prints if one fails."""
    rules, proofs = folder / "rules.yml", folder / "proofs.yml"
    rules.write_text(dump_documents([rule_file(rules_of(alert, rule_groups(thresholds)))]))
    proofs.write_text(dump_documents([proof_file(alert, "rules.yml")]))
    result = subprocess.run(
        [debian_tool("promtool"), "test", "rules", proofs], capture_output=True, text=True, timeout=120
    )
    return "" if result.returncode == 0 else f"{alert.expr}\n{result.stdout}{result.stderr}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("alert", "thresholds"), ALERTS, ids=[f"{a.name}-{'default' if t == Thresholds() else 'strict'}" for a, t in ALERTS]
)
def test_series_fire_the_alert_and_near_misses_do_not(
    alert: AlertingRule, thresholds: Thresholds, tmp_path: Path
) -> None:
    assert run_proofs(alert, thresholds, tmp_path) == ""


@pytest.mark.parametrize("alert", [alert for alert, _ in ALERTS], ids=lambda alert: alert.name)
def test_an_alert_has_both_proofs(alert: AlertingRule) -> None:
    assert {proof.fires > 0 for proof in alert.proofs} == {True, False}
    # A near miss has data for a metric of the alert.
    assert all(proof.series for proof in alert.proofs)


def test_promtool_accepts_all_rules(tmp_path: Path) -> None:
    path = tmp_path / "rules.yml"
    path.write_text(dump_documents([rule_file(rule_groups(Thresholds()))]))
    result = subprocess.run([debian_tool("promtool"), "check", "rules", path], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_names_of_rules_are_unique() -> None:
    names = [rule.name for group in rule_groups(Thresholds()) for rule in group.rules]
    assert len(names) == len(set(names))


def test_a_prometheus_rule_has_the_groups_and_the_labels() -> None:
    document = prometheus_rule(rule_groups(Thresholds()), "conch", "monitoring", {"release": "kps"})
    assert document["metadata"]["labels"]["release"] == "kps"
    assert document["spec"] == rule_file(rule_groups(Thresholds()))


def test_an_alert_that_does_not_fire_fails_its_proof(tmp_path: Path) -> None:
    """The check itself works: proofs of a rule with a threshold out of reach fail."""
    alert = next(alert for alert, _ in ALERTS if alert.name == "ConchQueueTimeHigh")
    broken = AlertingRule(
        alert.name,
        alert.severity,
        alert.expr.replace("> 0.1", "> 10"),
        alert.for_s,
        alert.summary,
        alert.remedy,
        alert.proofs,
    )
    assert "FAILED" in run_proofs(broken, Thresholds(), tmp_path)


@pytest.mark.slow
def test_amtool_accepts_the_routes(tmp_path: Path) -> None:
    path = tmp_path / "alertmanager.yml"
    path.write_text(dump_documents([alertmanager_file("http://127.0.0.1:9099/")]))
    result = subprocess.run([debian_tool("amtool"), "check-config", path], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("labels", "whose"),
    [
        ({"model": "detect", "version": "_all", "tenant": "_all"}, "model detect"),
        ({"model": "detect", "version": "2", "tenant": "_all"}, "model detect version 2"),
        ({"model": "detect", "version": "_all", "tenant": "acme"}, "tenant acme of model detect"),
        ({"model": "_all", "version": "_all", "tenant": "_all"}, "the server"),
        ({"model": "_all", "version": "_all", "tenant": "acme"}, "tenant acme of the server"),
        ({"model": "detect", "version": "1", "tenant": ""}, "model detect version 1"),
    ],
)
def test_texts_of_limit_alerts_name_who_is_above(labels: dict[str, str], whose: str, tmp_path: Path) -> None:
    """Prometheus itself expands the template."""
    groups = rule_groups(Thresholds())
    alert = next(alert for group in groups for alert in group.alerts if alert.name == "ConchRequestRateAboveLimit")
    (tmp_path / "rules.yml").write_text(dump_documents([rule_file(rules_of(alert, groups))]))
    selector = ", ".join(f'{name}="{value}"' for name, value in labels.items())
    series = {f"conch_request_rate{{{selector}}}": "120x8", f"conch_request_rate_limit{{{selector}}}": "100x8"}
    known = {name: value for name, value in labels.items() if value}
    expected = {
        "exp_labels": {**known, "severity": "critical"},
        "exp_annotations": {
            "summary": f"120 requests a second of {whose} are above the limit.",
            "description": alert.remedy,
        },
    }
    case = {
        "interval": "15s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [{"eval_time": "2m", "alertname": alert.name, "exp_alerts": [expected]}],
    }
    document = {"rule_files": ["rules.yml"], "evaluation_interval": "15s", "tests": [case]}
    (tmp_path / "case.yml").write_text(dump_documents([document]))
    words = [debian_tool("promtool"), "test", "rules", tmp_path / "case.yml"]
    result = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
