"""The proofs of alerts as tests of promtool."""

from collections.abc import Sequence
from typing import Any

from conch.operate.monitoring.promql import duration, metric_names, parse
from conch.operate.monitoring.rules.rule import AlertingRule, RecordingRule, RuleGroup


def proof_file(alert: AlertingRule, rules_path: str) -> dict[str, Any]:
    """Return the proofs of an alert as a test file of promtool. `rules_path` is the file with its rules."""
    return {
        "rule_files": [rules_path],
        "evaluation_interval": duration(max(proof.interval_s for proof in alert.proofs)),
        "tests": [
            {
                "name": f"{alert.name}: {proof.what}",
                "interval": duration(proof.interval_s),
                "input_series": [{"series": values.series, "values": values.values} for values in proof.series],
                "promql_expr_test": [
                    {
                        "expr": f'count(ALERTS{{alertname="{alert.name}", alertstate="firing"}})',
                        "eval_time": duration(proof.at_s),
                        "exp_samples": [{"labels": "{}", "value": proof.fires}] if proof.fires else [],
                    }
                ],
            }
            for proof in alert.proofs
        ],
    }


def rules_of(alert: AlertingRule, groups: Sequence[RuleGroup]) -> list[RuleGroup]:
    """Return groups with an alert and the recording rules that it uses, directly or through others."""
    recorded = {rule.name: rule for group in groups for rule in group.rules if isinstance(rule, RecordingRule)}
    needed: list[RecordingRule] = []
    unread = [alert.expr]
    while unread:
        for name in sorted(metric_names(parse(unread.pop())) & recorded.keys()):
            if recorded[name] not in needed:
                needed.insert(0, recorded[name])
                unread.append(recorded[name].expr)
    return [RuleGroup("proof", (*needed, alert))]
