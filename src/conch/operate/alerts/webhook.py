"""Alertmanager's webhook payload, version 4."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from conch.base.errors import InvalidRequest

Status: TypeAlias = Literal["firing", "resolved"]
_VERSION = "4"
_ZERO_TIME = "0001-01-01T00:00:00Z"  # Go's, for an alert that has not ended


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert, with what its webhook says about it. Times are RFC 3339; an end may be in the future."""

    status: Status
    labels: Mapping[str, str]
    annotations: Mapping[str, str] = field(default_factory=dict)
    starts_at: str = ""
    ends_at: str = ""
    generator_url: str = ""
    fingerprint: str = ""
    group_key: str = ""
    receiver: str = ""
    external_url: str = ""

    @property
    def name(self) -> str:
        """The label `alertname`."""
        return self.labels.get("alertname", "")

    @property
    def key(self) -> str:
        """What is equal for two notifications of the same change of an alert."""
        parts = (self.group_key, self.fingerprint or sorted(self.labels.items()), self.status, self.starts_at)
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def to_json(self) -> bytes:
        """Return the form in which the queue stores alerts."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__}, default=dict).encode()

    @classmethod
    def from_json(cls, data: bytes) -> "Alert":
        """Return a stored alert."""
        return cls(**json.loads(data))

    def document(self) -> dict[str, Any]:
        """Return the alert by the names of Alertmanager's payload, for templates and the default JSON body."""
        return {
            "status": self.status,
            "labels": dict(self.labels),
            "annotations": dict(self.annotations),
            "startsAt": self.starts_at,
            "endsAt": self.ends_at or _ZERO_TIME,
            "generatorURL": self.generator_url,
            "fingerprint": self.fingerprint,
        }


def read_webhook(body: bytes) -> list[Alert]:
    """Parse a webhook. Raises InvalidRequest with the field and what it must be."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise InvalidRequest("the body is not valid JSON; expected a webhook of Alertmanager, version 4") from None
    if not isinstance(document, dict):
        raise InvalidRequest("the body is not a JSON object; expected a webhook of Alertmanager, version 4")
    if document.get("version") != _VERSION:
        version = json.dumps(document.get("version"))[:20]
        raise InvalidRequest(f"'version' is {version}; expected \"{_VERSION}\", the version of Alertmanager's webhooks")
    alerts = document.get("alerts")
    if not isinstance(alerts, list):
        raise InvalidRequest("'alerts' is not a list")
    shared = {
        "group_key": _text(document, "groupKey", "groupKey"),
        "receiver": _text(document, "receiver", "receiver"),
        "external_url": _text(document, "externalURL", "externalURL"),
    }
    return [_alert(alert, f"alerts[{index}]", shared) for index, alert in enumerate(alerts)]


def _alert(document: object, where: str, shared: Mapping[str, str]) -> Alert:
    if not isinstance(document, dict):
        raise InvalidRequest(f"'{where}' is not an object")
    status = document.get("status")
    if status not in ("firing", "resolved"):
        raise InvalidRequest(f'\'{where}.status\' is not "firing" or "resolved"')
    return Alert(
        status,
        _texts(document, "labels", where),
        _texts(document, "annotations", where),
        _text(document, "startsAt", f"{where}.startsAt"),
        _text(document, "endsAt", f"{where}.endsAt"),
        _text(document, "generatorURL", f"{where}.generatorURL"),
        _text(document, "fingerprint", f"{where}.fingerprint"),
        **shared,
    )


def _text(document: Mapping[str, object], name: str, where: str) -> str:
    value = document.get(name, "")
    if not isinstance(value, str):
        raise InvalidRequest(f"'{where}' is not a string")
    return value


def _texts(document: Mapping[str, object], name: str, where: str) -> dict[str, str]:
    value = document.get(name) or {}
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise InvalidRequest(f"'{where}.{name}' is not an object of strings")
    return value


def common(texts: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the names and values that all mappings have."""
    first, *others = texts or ({},)
    return {name: value for name, value in first.items() if all(other.get(name) == value for other in others)}


def sample_alert(status: Status = "firing") -> Alert:
    """Return an alert for test messages. Its summary has characters that JSON and markup escape."""
    return Alert(
        status,
        {"alertname": "ConchTest", "severity": "info", "model": "detector", "version": "1"},
        {
            "summary": 'Test message of "conch alerts test": <b>no action</b> is needed & nothing is broken.',
            "description": "Sent by conch alerts test.\nIt has two lines.",
        },
        "2026-01-01T00:00:00Z",
        _ZERO_TIME if status == "firing" else "2026-01-01T00:05:00Z",
        "http://prometheus.example.com/graph",
        "c0c4c0c4c0c4c0c4",
        '{}:{alertname="ConchTest"}',
        "conch",
        "http://alertmanager.example.com",
    )
