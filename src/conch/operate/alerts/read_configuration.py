"""Reads the configuration of the receiver from YAML. All problems are reported, with line and remedy."""

import ipaddress
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from conch.base.durations import parse_prometheus_duration
from conch.base.errors import ConfigError
from conch.base.suggestion import closest, did_you_mean
from conch.base.yaml_documents import YamlDocument, YamlError, YamlPath, load_document
from conch.operate.alerts.chat_services import SERVICES, body_of_template
from conch.operate.alerts.configuration import (
    DEFAULT_DEDUPLICATE_S,
    DEFAULT_GIVE_UP_S,
    DEFAULT_MAX_ALERTS,
    AlertRoute,
    BasicAuth,
    ReceiverConfig,
    Secret,
    Target,
)
from conch.operate.alerts.message import MessageTemplates, TemplateFailed, check_template, compose
from conch.operate.alerts.webhook import sample_alert

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_MAX_QUEUED = 1_000_000

_TOP = ("auth", "queue", "targets", "routes")
_TARGET = ("type", "url", "secret", "headers", "title", "text", "body", "group_by", "max_alerts", "send_resolved",
           "ca_file")  # fmt: skip
_ROUTE = ("match", "match_re", "targets", "continue")
_QUEUE = ("max_alerts", "deduplicate_for", "give_up_after")


def read_configuration(path: Path) -> ReceiverConfig:
    """Read and check a file, and that its secrets are available. Raises ConfigError with all problems."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error.strerror if isinstance(error, OSError) else 'not UTF-8'}") from None
    try:
        document = load_document(text, unique_keys=True)
    except YamlError as error:
        raise ConfigError(f"{path}: line {error.line}: {error}") from None
    reader = _ConfigReader(path.parent, document)
    config = reader.read(document.value)
    if reader.problems:
        raise ConfigError("\n".join(f"{path}:{line}: {text}" for line, text in sorted(reader.problems)))
    return config


class _ConfigReader:
    """Reads the values and collects problems as (line, text)."""

    def __init__(self, folder: Path, document: YamlDocument) -> None:
        self._folder = folder
        self._document = document
        self.problems: list[tuple[int, str]] = []

    def read(self, document: object) -> ReceiverConfig:
        top = self._mapping(document, (), _TOP)
        targets = {
            str(name): target
            for name, value in self._mapping(top.get("targets"), ("targets",)).items()
            if (target := self._target(str(name), value, ("targets", str(name))))
        }
        if not self._mapping(top.get("targets"), ("targets",)):
            self._problem(("targets",), "'targets' is missing or empty; add at least one target with type and url")
        auth = self._mapping(top.get("auth"), ("auth",), ("bearer", "basic"))
        queue = self._mapping(top.get("queue"), ("queue",), _QUEUE)
        if len(auth) > 1:
            self._problem(("auth",), "'auth' has both bearer and basic; keep one of them")
        known = self._mapping(top.get("targets"), ("targets",))
        return ReceiverConfig(
            targets,
            self._routes(top.get("routes"), known),
            self._secret(auth["bearer"], ("auth", "bearer")) if "bearer" in auth else None,
            self._basic(auth["basic"]) if "basic" in auth else None,
            self._number(queue, "max_alerts", ("queue",), DEFAULT_MAX_ALERTS, _MAX_QUEUED),
            self._duration(queue, "deduplicate_for", DEFAULT_DEDUPLICATE_S),
            self._duration(queue, "give_up_after", DEFAULT_GIVE_UP_S),
        )

    def _target(self, name: str, value: object, path: YamlPath) -> Target | None:
        if not _NAME.fullmatch(name):
            self._problem(path, f"'{name}' is not a valid name; use letters, digits, '_', '.' and '-'")
        given = self._mapping(value, path, _TARGET)
        service = SERVICES.get(str(given.get("type", "")))
        if service is None:
            hint = did_you_mean(str(given.get("type", "")), SERVICES)
            self._problem((*path, "type"), f"'type' must be one of {', '.join(SERVICES)}{hint}")
            return None
        if "secret" in given and service.sign is None:
            self._problem((*path, "secret"), f"{service.name} has no signature; remove 'secret'")
        generic = service.name == "generic"
        for field in ("headers", "body") if not generic else ("text",):
            if field in given:
                use = "body" if generic else "text"
                self._problem((*path, field), f"{service.name} has no '{field}'; use '{use}' or another type")
        headers = self._mapping(given.get("headers"), (*path, "headers"))
        target = Target(
            name,
            service,
            self._url(given.get("url"), (*path, "url"), generic),
            self._secret(given["secret"], (*path, "secret")) if "secret" in given else None,
            {str(key): self._secret(header, (*path, "headers", str(key)), True) for key, header in headers.items()},
            MessageTemplates(self._template(given, "title", path), self._template(given, "text", path)),
            self._template(given, "body", path),
            self._labels(given["group_by"], (*path, "group_by")) if "group_by" in given else None,
            self._number(given, "max_alerts", path, service.max_alerts, service.max_alerts),
            self._flag(given, "send_resolved", path, True),
            self._file(given.get("ca_file"), (*path, "ca_file")),
        )
        self._try_templates(target, path)
        return target

    def _try_templates(self, target: Target, path: YamlPath) -> None:
        """Render the templates with a sample, whose values have quotation marks and line feeds."""
        if any(line[: len(path)] == path for line in self._bad_templates):
            return
        try:
            message = compose([sample_alert(), sample_alert("resolved")], target.templates)
            if target.body:
                body_of_template(target.body, message)
        except TemplateFailed as error:
            self._problem((*path, "body" if target.body else "text"), str(error))

    @property
    def _bad_templates(self) -> list[YamlPath]:
        bad = {line for line, _ in self.problems}
        return [path for path, line in self._document.lines.items() if line in bad]

    def _routes(self, value: object, known: Mapping[str, object]) -> list[AlertRoute]:
        if value is None:
            return [AlertRoute(tuple(map(str, known)))]
        if not isinstance(value, list) or not value:
            self._problem(("routes",), "'routes' must be a list of routes, or be omitted to send all to all targets")
            return []
        return [self._route(route, ("routes", index), known) for index, route in enumerate(value)]

    def _route(self, value: object, path: YamlPath, known: Mapping[str, object]) -> AlertRoute:
        given = self._mapping(value, path, _ROUTE)
        names = self._labels(given.get("targets"), (*path, "targets"))
        if not names:
            self._problem(path, "the route has no 'targets'; list the names of targets")
        for name in names:
            if name not in known:
                near = closest(name, map(str, known)) or ", ".join(map(str, known))
                self._problem((*path, "targets"), f"unknown target '{name}'; known are {near}")
        matchers = {}
        for field in ("match", "match_re"):
            for label, text in self._mapping(given.get(field), (*path, field)).items():
                try:
                    pattern = str(text) if field == "match_re" else re.escape(str(text))
                    matchers[str(label)] = re.compile(pattern)
                except re.error as error:
                    where = (*path, field, str(label))
                    self._problem(where, f"'{text}' is not a valid regular expression: {error}")
        return AlertRoute(names, matchers, self._flag(given, "continue", path, False))

    def _url(self, value: object, path: YamlPath, generic: bool) -> Secret:
        secret = self._secret(value, path, literal=generic)
        try:
            url = secret.read()
        except OSError:
            return secret
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or not _printable(url):
            self._problem(path, "the URL is not valid; it must begin with https:// and a host name")
        elif parts.scheme == "http" and not generic and not _is_loopback(parts.hostname):
            self._problem(path, "the URL sends the credentials unencrypted; begin it with https://")
        return secret

    def _secret(self, value: object, path: YamlPath, literal: bool = False) -> Secret:
        """Read `{file: PATH}` or `{env: NAME}`, and text if `literal`."""
        name = path[-1]
        if literal and isinstance(value, str) and value:
            return Secret(literal=value)
        given = self._mapping(value, path, ("file", "env")) if isinstance(value, dict) else {}
        if len(given) != 1 or not all(isinstance(place, str) and place for place in given.values()):
            hint = "" if value is None else ", so that it does not stand in this file"
            self._problem(path, f"'{name}' must be {{env: VARIABLE}} or {{file: PATH}}{hint}")
            return Secret(literal="-")
        secret = Secret(variable=given["env"]) if "env" in given else Secret(file=self._folder / given["file"])
        try:
            secret.read()
        except OSError as error:
            reason = error.strerror or str(error)
            self._problem(path, f"'{name}' cannot be read from {secret.source}: {reason}; provide it there")
        return secret

    def _basic(self, value: object) -> BasicAuth:
        path = ("auth", "basic")
        given = self._mapping(value, path, ("username", "password"))
        username = given.get("username")
        if not isinstance(username, str) or not username or ":" in username:
            self._problem((*path, "username"), "'username' must be a text without ':'")
        return BasicAuth(str(username), self._secret(given.get("password"), (*path, "password")))

    def _template(self, given: Mapping[str, Any], name: str, path: YamlPath) -> str:
        value = given.get(name, "")
        if not isinstance(value, str):
            self._problem((*path, name), f"'{name}' must be a template, that is, a text")
            return ""
        if problem := check_template(value):
            self._problem((*path, name), f"'{name}': {problem}")
            return ""
        return value

    def _labels(self, value: object, path: YamlPath) -> tuple[str, ...]:
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self._problem(path, f"'{path[-1]}' must be a list of names")
            return ()
        return tuple(value)

    def _number(self, given: Mapping[str, Any], name: str, path: YamlPath, default: int, maximum: int) -> int:
        value = given.get(name, default)
        if type(value) is not int or not 1 <= value <= maximum:
            self._problem((*path, name), f"'{name}' must be a number from 1 to {maximum}")
            return default
        return value

    def _flag(self, given: Mapping[str, Any], name: str, path: YamlPath, default: bool) -> bool:
        value = given.get(name, default)
        if not isinstance(value, bool):
            self._problem((*path, name), f"'{name}' must be true or false")
        return value is True

    def _duration(self, given: Mapping[str, Any], name: str, default: float) -> float:
        if name not in given:
            return default
        try:
            return parse_prometheus_duration(str(given[name]))
        except ValueError:
            self._problem(("queue", name), f"'{name}' must be a number with a unit, such as 30s, 5m, 1h or 2d")
            return default

    def _file(self, value: object, path: YamlPath) -> Path | None:
        if value is None:
            return None
        file = self._folder / str(value)
        if not file.is_file():
            self._problem(path, f"'{path[-1]}': {file} does not exist; give the path of a file with certificates")
        return file

    def _mapping(self, value: object, path: YamlPath, known: tuple[str, ...] | None = None) -> dict[str, Any]:
        if value is None:
            return {}
        if not isinstance(value, dict):
            name = f"'{path[-1]}'" if path else "the file"
            self._problem(path, f"{name} must be a mapping of names to values", once=True)
            return {}
        for name in _unknown(value, known):
            hint = did_you_mean(name, known or (), f"; known are {', '.join(known or ())}")
            self._problem((*path, name), f"unknown field '{name}'{hint}")
        return value

    def _problem(self, path: YamlPath, text: str, once: bool = False) -> None:
        problem = (self._document.line(path), text)
        if not once or problem not in self.problems:
            self.problems.append(problem)


def _unknown(value: Mapping[Any, object], known: tuple[str, ...] | None) -> Iterator[str]:
    for name in value:
        if known is not None and name not in known:
            yield str(name)


def _printable(url: str) -> bool:
    return url.isascii() and url.isprintable() and " " not in url


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
