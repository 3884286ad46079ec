"""Recognise secrets that stand in a file as plain text."""

import re
from collections.abc import Iterator

from conch.check.finding import Finding
from conch.check.source import SourceFile

_NAME = re.compile(
    r"(?:TOKEN|PASSWORD|PASSWD|SECRET|API_?KEY|SECRET_ACCESS_KEY|ACCOUNT_KEY|PRIVATE_KEY)$", re.IGNORECASE
)
# Variables, templates, and texts that stand for a value.
_PLACEHOLDER = re.compile(
    r"[${<…]|\.\.\.|^(?:your|my|the)?[-_ ]?(?:x{3,}|changeme|change[-_]me|replace|example|none|null)", re.IGNORECASE
)
_KNOWN = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{30,}|AKIA[0-9A-Z]{16}|gh[pousr]_[A-Za-z0-9]{36,}|nvapi-[\w-]{40,}"
    r"|-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----)"
)


def is_secret(name: str, value: str) -> bool:
    """Whether a setting is a secret, and its value is not a placeholder."""
    return bool(_NAME.search(name)) and bool(value.strip()) and not _PLACEHOLDER.search(value.strip())


def secret_message(what: str) -> str:
    """Return the message for a setting, which does not contain the secret."""
    return f"the value of {what} is a secret in plain text"


def check_known_secrets(source: SourceFile) -> Iterator[Finding]:
    """Find tokens and keys by the forms that their services give them."""
    for match in _KNOWN.finditer(source.text):
        if len(set(match[0][4:])) > 4 or match[0].startswith("-"):  # not hf_xxxx
            begin = match[0][:8].rstrip("-") if match[0].startswith("-") else match[0][:4]
            yield Finding("secret-text", source.at(match.start()), f"a secret that begins with '{begin}'")
