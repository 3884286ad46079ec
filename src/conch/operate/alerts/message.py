"""Messages: what the services format, from alerts and templates. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote

from jinja2 import ChainableUndefined, TemplateSyntaxError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from conch.operate.alerts.webhook import Alert, common

_MAX_TITLE = 150  # characters; Slack's limit of a header
_ELLIPSIS = "…"


class Detail(NamedTuple):
    """How much of each alert a message shows: characters of a template's text, of a value, and number of labels."""

    text: int
    value: int
    labels: int


# From complete to what always fits.
DETAILS = (Detail(18_000, 2_000, 40), Detail(3_500, 500, 20), Detail(900, 150, 10), Detail(300, 50, 0))


class MessageField(NamedTuple):
    """A labelled value."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class AlertSection:
    """One alert in a message. `link` is where it was generated."""

    firing: bool
    heading: str
    text: str
    fields: tuple[MessageField, ...]
    link: str


@dataclass(frozen=True, slots=True)
class Message:
    """A message. `text`, if set, comes from a template, is in the service's markup and replaces the sections."""

    title: str
    firing: bool
    sections: tuple[AlertSection, ...]
    text: str
    link: str
    variables: Mapping[str, Any]  # for the template of a JSON body


class MessageTemplates(NamedTuple):
    """The templates of a target; "" for the default."""

    title: str = ""
    text: str = ""


DEFAULT_TEMPLATES = MessageTemplates()


class TemplateFailed(Exception):
    """A template cannot be rendered; the message has the cause."""


_environment = ImmutableSandboxedEnvironment(
    undefined=ChainableUndefined,  # a label that an alert lacks is empty
    autoescape=False,
    keep_trailing_newline=False,
    trim_blocks=True,
    lstrip_blocks=True,
)


def check_template(source: str) -> str:
    """Return what is wrong with a template, "" for nothing."""
    try:
        unknown = meta.find_undeclared_variables(_environment.parse(source)) - VARIABLES
        _environment.from_string(source)
    except TemplateSyntaxError as error:
        return f"line {error.lineno} of the template: {error.message}"
    if unknown:
        return f"unknown variable '{min(unknown)}'; the variables are {', '.join(sorted(VARIABLES))}"
    return ""


def render(source: str, variables: Mapping[str, Any], escapes: Mapping[int, str] | None = None) -> str:
    """Render a template, with values escaped for the markup (a table of `str.translate`). Raises TemplateFailed."""
    environment = _environment.overlay(finalize=partial(_escaped, escapes)) if escapes else _environment
    try:
        return environment.from_string(source).render(variables)
    except Exception as error:  # whatever an expression of the template raises
        raise TemplateFailed(f"the template cannot be rendered: {type(error).__name__}: {error}") from None


def _escaped(escapes: Mapping[int, str], value: object) -> object:
    return value.translate(escapes) if isinstance(value, str) else value


# Names of Alertmanager's payload, and the title.
VARIABLES = frozenset(
    {"status", "alerts", "firing", "resolved", "commonLabels", "commonAnnotations", "receiver", "externalURL", "title"}
)


def compose(
    alerts: Sequence[Alert],
    templates: MessageTemplates,
    detail: Detail = DETAILS[0],
    escapes: Mapping[int, str] | None = None,
) -> Message:
    """Compose the message of at least one alert. Only the text of a template is escaped. Raises TemplateFailed."""
    firing = [alert for alert in alerts if alert.status == "firing"]
    resolved = [alert for alert in alerts if alert.status != "firing"]
    variables: dict[str, Any] = {
        "status": "firing" if firing else "resolved",
        "alerts": [alert.document() for alert in alerts],
        "firing": [alert.document() for alert in firing],
        "resolved": [alert.document() for alert in resolved],
        "commonLabels": common([alert.labels for alert in alerts]),
        "commonAnnotations": common([alert.annotations for alert in alerts]),
        "receiver": alerts[0].receiver,
        "externalURL": alerts[0].external_url,
    }
    title = _title(firing, resolved)
    if templates.title:
        title = render(templates.title, {**variables, "title": title}).strip() or title
    variables["title"] = title = shortened(" ".join(title.split()), _MAX_TITLE)
    return Message(
        title,
        bool(firing),
        tuple(_section(alert, detail) for alert in alerts),
        shortened(render(templates.text, variables, escapes).strip(), detail.text) if templates.text else "",
        alerts[0].external_url,
        variables,
    )


def _title(firing: Sequence[Alert], resolved: Sequence[Alert]) -> str:
    """Return such as `[FIRING:2, RESOLVED:1] QueueTimeHigh (model=detector)`."""
    counts = [f"{word}:{len(some)}" for word, some in (("FIRING", firing), ("RESOLVED", resolved)) if some]
    alerts = [*firing, *resolved]
    names = list(dict.fromkeys(alert.name for alert in alerts if alert.name))
    shared = [f"{name}={value}" for name, value in common([alert.labels for alert in alerts]).items()]
    labels = ", ".join(pair for pair in shared if not pair.startswith("alertname="))
    return f"[{', '.join(counts)}] {', '.join(names)}" + (f" ({labels})" if labels else "")


def _section(alert: Alert, detail: Detail) -> AlertSection:
    summary = alert.annotations.get("summary") or alert.annotations.get("message", "")
    description = alert.annotations.get("description", "")
    text = "\n".join(part for part in (summary, description if description != summary else "") if part)
    labels = [
        MessageField(name, shortened(value, detail.value))
        for name, value in alert.labels.items()
        if name != "alertname"
    ]
    more = [MessageField("runbook", alert.annotations["runbook_url"])] if alert.annotations.get("runbook_url") else []
    times = [MessageField("since", alert.starts_at)] if alert.starts_at else []
    if alert.status == "resolved" and alert.ends_at:
        times.append(MessageField("until", alert.ends_at))
    return AlertSection(
        alert.status == "firing",
        shortened(f"{alert.status.upper()} {alert.name}", _MAX_TITLE),
        shortened(text, detail.value),
        tuple(labels[: detail.labels] + (more if detail.labels else [])) + tuple(times),
        _link(alert.generator_url) if len(alert.generator_url) <= detail.value else "",
    )


def _link(url: str) -> str:
    """Return a URL without characters that end a link in Markdown or Slack's markup; "" if it is not one."""
    return quote(url, safe="/:?#[]@!$&'*+,;=%~") if url.startswith(("http://", "https://")) else ""


def shortened(text: str, characters: int) -> str:
    """Return a text of at most `characters`, with an ellipsis if it is cut."""
    return text if len(text) <= characters else text[: characters - 1].rstrip() + _ELLIPSIS
