"""The configuration of the receiver: targets, secrets, and the routing of alerts."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, quote_plus

from conch.operate.alerts.chat_services import TargetService
from conch.operate.alerts.message import DEFAULT_TEMPLATES, MessageTemplates
from conch.operate.alerts.webhook import Alert

_MAX_BYTES = 65_536
_MIN_PART_CHARACTERS = 9  # of a URL; shorter ones are words such as "services"


@dataclass(frozen=True, slots=True, repr=False)
class Secret:
    """A value that must not be printed. Exactly one of the fields is set.

    A file is read for each use, so that a rotated secret needs no restart.
    """

    file: Path | None = None
    variable: str = ""
    literal: str = ""

    def __repr__(self) -> str:
        return f"Secret({self.source})"

    @property
    def source(self) -> str:
        """Where the value comes from, for messages."""
        return f"file {self.file}" if self.file else f"variable {self.variable}" if self.variable else "configuration"

    def read(self) -> str:
        """Return the value without surrounding space. Raises OSError if it is missing, empty or too large."""
        if self.file is not None:
            with self.file.open("rb") as file:
                data = file.read(_MAX_BYTES + 1)
            if len(data) > _MAX_BYTES:
                raise OSError(f"{self.file} has more than {_MAX_BYTES} bytes")
            value = data.decode("utf-8", "replace").strip()
        else:
            value = (self.literal or os.environ.get(self.variable, "")).strip()
        if not value:
            raise OSError(f"the {self.source} is empty or not set")
        return value


def redact(text: str, secrets: Iterable[str]) -> str:
    """Replace secrets, also in URL-encoded form and as parts of URLs, by ***."""
    forms = {form for secret in secrets for part in _parts(secret) for form in (part, quote(part), quote_plus(part))}
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, "***")
    return text


def _parts(secret: str) -> Iterable[str]:
    yield secret
    if "://" in secret:
        # Of a URL, its path and the values of its parameters are secret.
        path, _, query = secret.partition("://")[2].partition("/")[2].partition("?")
        values = [path, *path.split("/"), query, *(value.partition("=")[2] for value in query.split("&"))]
        yield from (value for value in values if len(value) >= _MIN_PART_CHARACTERS)


DEFAULT_MAX_ALERTS = 10_000
DEFAULT_DEDUPLICATE_S = 3600.0
DEFAULT_GIVE_UP_S = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Target:
    """Where messages are posted to."""

    name: str
    service: TargetService
    url: Secret
    secret: Secret | None = None
    headers: Mapping[str, Secret] = field(default_factory=dict)
    templates: MessageTemplates = DEFAULT_TEMPLATES
    body: str = ""  # template of the JSON body of the generic service
    group_by: tuple[str, ...] | None = None  # labels; None for Alertmanager's groups
    max_alerts: int = 20  # in one message
    send_resolved: bool = True
    ca_file: Path | None = None

    def grouping(self, alert: Alert) -> str:
        """Return what is equal for alerts that may be in one message."""
        if self.group_by is None:
            return alert.group_key
        return "\0".join(alert.labels.get(name, "") for name in self.group_by)

    def secrets(self) -> list[str]:
        """Return the values that must not be printed. Those that cannot be read are omitted."""
        values = []
        for secret in (self.url, self.secret, *self.headers.values()):
            try:
                values.append(secret.read() if secret else "")
            except OSError:
                continue
        return [value for value in values if value]


@dataclass(frozen=True, slots=True)
class AlertRoute:
    """Alerts whose labels match all expressions go to the targets, and with `proceed` also to later routes."""

    targets: tuple[str, ...]
    matchers: Mapping[str, re.Pattern[str]] = field(default_factory=dict)
    proceed: bool = False

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether the route applies. A label that is missing is empty."""
        return all(pattern.fullmatch(labels.get(name, "")) for name, pattern in self.matchers.items())


@dataclass(frozen=True, slots=True)
class BasicAuth:
    """User name and password that webhooks must have."""

    username: str
    password: Secret


@dataclass(frozen=True, slots=True)
class ReceiverConfig:
    """The whole configuration. Without routes all alerts go to all targets."""

    targets: Mapping[str, Target]
    routes: Sequence[AlertRoute]
    bearer: Secret | None = None
    basic: BasicAuth | None = None
    max_alerts: int = DEFAULT_MAX_ALERTS  # in the queue of each target
    deduplicate_s: float = DEFAULT_DEDUPLICATE_S
    give_up_s: float = DEFAULT_GIVE_UP_S

    def targets_of(self, alert: Alert) -> Iterator[Target]:
        """Yield the targets of an alert, each once."""
        seen = set[str]()
        for name in self._names(alert):
            target = self.targets[name]
            if name not in seen and (target.send_resolved or alert.status == "firing"):
                yield target
            seen.add(name)

    def routed(self, alert: Alert) -> bool:
        """Return whether any route matches an alert."""
        return any(route.matches(alert.labels) for route in self.routes)

    def _names(self, alert: Alert) -> Iterator[str]:
        for route in self.routes:
            if route.matches(alert.labels):
                yield from route.targets
                if not route.proceed:
                    return
