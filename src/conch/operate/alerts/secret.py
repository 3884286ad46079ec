"""Secrets of the configuration, from a file or an environment variable, and their removal from texts."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, quote_plus

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
