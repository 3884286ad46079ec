"""`conch rules list`: the rules as a table."""

import json
from collections.abc import Sequence
from io import StringIO
from typing import Any

from rich.console import Console
from rich.table import Table

from conch.operate.monitoring.promql import duration
from conch.operate.monitoring.rules.rule import RuleGroup

_WIDTH = 180


def rule_table(groups: Sequence[RuleGroup], *, as_json: bool) -> str:
    """Return the alerts as a table or as JSON."""
    alerts: list[dict[str, Any]] = [
        {
            "group": group.name,
            "alert": alert.name,
            "severity": alert.severity,
            "expr": alert.expr,
            "for": duration(alert.for_s) if alert.for_s else "0s",
            "fires": [proof.what for proof in alert.proofs if proof.fires],
            "near_misses": [proof.what for proof in alert.proofs if not proof.fires],
        }
        for group in groups
        for alert in group.alerts
    ]
    if as_json:
        return json.dumps(alerts, indent=2) + "\n"
    table = Table("alert", "severity", "for", "fires if", "near misses", box=None, pad_edge=False, header_style="bold")
    for each in alerts:
        table.add_row(
            each["alert"], each["severity"], each["for"], each["expr"], "; ".join(each["near_misses"]), end_section=True
        )
    stream = StringIO()
    Console(file=stream, width=_WIDTH, highlight=False).print(table)
    return stream.getvalue()
