"""Webhooks of Alertmanager for tests."""

import json
from typing import Any

from conch.operate.alerts.webhook import Alert, read_webhook


def webhook(*names: str, status: str = "firing", group: str = "g", starts: str = "2026-01-01T00:00:00Z") -> bytes:
    """A webhook with an alert for each name."""
    alerts: list[dict[str, Any]] = [
        {
            "status": status,
            "labels": {"alertname": name, "severity": "critical"},
            "annotations": {"summary": f"summary of {name}"},
            "startsAt": starts,
            "endsAt": "0001-01-01T00:00:00Z",
            "generatorURL": "http://prometheus/graph?g0.expr=up&g0.tab=1",
            "fingerprint": f"fp-{name}",
        }
        for name in names
    ]
    return json.dumps(
        {
            "version": "4",
            "groupKey": group,
            "truncatedAlerts": 0,
            "status": status,
            "receiver": "conch",
            "groupLabels": {},
            "commonLabels": {},
            "commonAnnotations": {},
            "externalURL": "http://alertmanager",
            "alerts": alerts,
        }
    ).encode()


def alerts(*names: str, status: str = "firing", group: str = "g", starts: str = "2026-01-01T00:00:00Z") -> list[Alert]:
    return read_webhook(webhook(*names, status=status, group=group, starts=starts))
