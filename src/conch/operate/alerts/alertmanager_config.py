"""Configurations of Alertmanager that send alerts to the receiver."""

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from conch.base.errors import ConfigError
from conch.base.http.credentials import check_no_credentials
from conch.base.yaml_documents import dump_documents, load_document
from conch.operate.alerts.configuration import ReceiverConfig, Secret


def alertmanager_snippet(config: ReceiverConfig, url: str) -> str:
    """Return YAML for alertmanager.yml. Credentials are referred to by files. Raises ConfigError for an invalid URL."""
    check_webhook_url("--url", url)
    webhook: dict[str, Any] = {"url": url, "send_resolved": True}
    if config.bearer is not None:
        file = _file(config.bearer, "receiver-token")
        webhook["http_config"] = {"authorization": {"type": "Bearer", "credentials_file": file}}
    if config.basic is not None:
        file = _file(config.basic.password, "receiver-password")
        webhook["http_config"] = {"basic_auth": {"username": config.basic.username, "password_file": file}}
    document = {
        "route": {
            "receiver": "conch",
            "group_by": ["alertname", "model"],
            "group_wait": "30s",
            "repeat_interval": "4h",
        },
        "receivers": [{"name": "conch", "webhook_configs": [webhook]}],
    }
    return dump_documents([document])


def alertmanager_file(webhook: str) -> dict[str, Any]:
    """Return `alertmanager.yml`, which routes the alerts to a webhook, urgent ones sooner."""
    text = Path(__file__).with_name("alertmanager.yml").read_text(encoding="utf-8")
    document: dict[str, Any] = load_document(text).value
    document["receivers"][0]["webhook_configs"] = [{"url": webhook, "send_resolved": True}]
    return document


def check_webhook_url(option: str, url: str) -> None:
    """Raise ConfigError if the value of an option is not a URL that Alertmanager can post to, or has credentials."""
    try:
        check_no_credentials(url)
    except ValueError as error:
        raise ConfigError(f"{option} {error}; Alertmanager reads them from 'http_config'") from None
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of a port or an IPv6 address
        valid = False
    if not valid or not url.isprintable() or " " in url:
        raise ConfigError(f"{option} '{url}' is not valid; it must begin with http:// or https:// and a host name")


def _file(secret: Secret, name: str) -> str:
    return str(secret.file.resolve()) if secret.file else f"/etc/alertmanager/{name}"
