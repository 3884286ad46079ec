"""Recall of the analysis: 90 % of the labelled alerts that never fire, 60 % of those that misfire, no false error."""

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from conch.base.yaml_documents import YamlDocument
from conch.domain.metrics.catalog import all_metrics
from conch.operate.monitoring.rules.analysis import analyse_rules
from conch.operate.monitoring.rules.known_metrics import MetricTable
from conch.operate.monitoring.rules.user_rules import read_rules
from tests.support.debian import debian_tool
from tests.unit.operate.monitoring.rules.labelled_rules import HEALTHY, MISFIRING, MISFIRING_MISSED, NEVER, NEVER_MISSED

NEVER_FIRING = [rule for rules in NEVER.values() for rule in rules]
FIRING_WRONGLY = [rule for rules in MISFIRING.values() for rule in rules]
ERRORS = {"never", "wrong"}


def document(rules: Iterable[tuple[str, str | None]]) -> dict[str, object]:
    """Return a rule file."""
    written = [
        {"alert": f"Alert{index}", "expr": expr} | ({} if hold is None else {"for": hold})
        for index, (expr, hold) in enumerate(rules)
    ]
    return {"groups": [{"name": "labelled", "rules": written}]}


def verdicts(expr: str, hold: str | None) -> set[str]:
    """Return the verdicts of the problems of an alert."""
    rules = read_rules(YamlDocument(document([(expr, hold)])))
    [analysed] = analyse_rules(rules, MetricTable(all_metrics(), optional_counters=False))
    return {problem.verdict for problem in analysed.problems}


@pytest.mark.parametrize(("expr", "hold"), NEVER_FIRING)
def test_an_alert_that_never_fires_is_found(expr: str, hold: str) -> None:
    assert "never" in verdicts(expr, hold)


@pytest.mark.parametrize(("expr", "hold"), FIRING_WRONGLY)
def test_an_alert_that_misfires_is_found(expr: str, hold: str | None) -> None:
    assert verdicts(expr, hold)


@pytest.mark.parametrize(("expr", "hold"), [*HEALTHY, *NEVER_MISSED, *MISFIRING_MISSED])
def test_a_healthy_alert_is_silent(expr: str, hold: str | None) -> None:
    assert verdicts(expr, hold) == set()


def test_recall() -> None:
    assert len(NEVER) >= 20
    assert len(NEVER_FIRING) / (len(NEVER_FIRING) + len(NEVER_MISSED)) >= 0.9
    assert len(FIRING_WRONGLY) / (len(FIRING_WRONGLY) + len(MISFIRING_MISSED)) >= 0.6
    errors = sum(bool(verdicts(*rule) & ERRORS) for rule in FIRING_WRONGLY)
    assert errors / (len(FIRING_WRONGLY) + len(MISFIRING_MISSED)) >= 0.45  # as errors, not only as doubts


def test_promtool_accepts_the_labelled_alerts(tmp_path: Path) -> None:
    path = tmp_path / "rules.yml"
    everything = [*NEVER_FIRING, *NEVER_MISSED, *FIRING_WRONGLY, *MISFIRING_MISSED, *HEALTHY]
    path.write_text(json.dumps(document(everything)))
    subprocess.run([debian_tool("promtool"), "check", "rules", str(path)], check=True, capture_output=True)
