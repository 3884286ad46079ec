"""Limits of requests and tokens per second, and how they are read from documents, files and annotations.

Annotations of Kubernetes objects:
max_qps, conch.ai/max-qps              requests per second of each model
conch.ai/max-tokens-per-second         tokens per second of each model
conch.ai/limits-enforced               "true" to refuse requests over these; without it they are soft
conch.ai/limits                        YAML in the form of a limits file
conch.ai/limits-shared                 "true": all of these are for all replicas together, and each has its share
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, Final

from conch.base.errors import ConfigError
from conch.base.extras import install_command
from conch.base.files.stamps import file_stamp

EACH = "*"  # each model, version or tenant separately
UNLIMITED: Final = 1_000_000_000_000_000
MAX_PER_SECOND = 1_000_000_000
MAX_LIMITS = 10_000
MAX_WEIGHT = 1000
MAX_NAME_LENGTH = 256

_NUMBER = re.compile(r"[+-]?[0-9]{1,24}(\.[0-9]{0,24})?([eE][+-]?[0-9]{1,6})?")
_LEADING_NUMBER = re.compile(r"\s*([0-9]+)")
_PARTS = ("model", "version", "tenant")
_FIELDS = ("model", "version", "tenant", "requests_per_second", "tokens_per_second", "weight", "enforced")
POLL_S = 0.5
MAX_FILE_BYTES = 4 * 2**20
MAX_QPS = "max_qps"
PREFIX = "conch.ai/"
QUALIFIED_MAX_QPS = f"{PREFIX}max-qps"
MAX_TOKENS = f"{PREFIX}max-tokens-per-second"
ENFORCED = f"{PREFIX}limits-enforced"
LIMITS = f"{PREFIX}limits"
SHARED = f"{PREFIX}limits-shared"
KNOWN = (MAX_QPS, QUALIFIED_MAX_QPS, MAX_TOKENS, ENFORCED, LIMITS, SHARED)
# Unknown annotations that begin so are mistakes; others may be for something else.
_OURS = (f"{PREFIX}max", f"{PREFIX}limit")


class Quantity(Enum):
    """What a limit counts, or the weight of a tenant: its share where requests of several tenants wait."""

    REQUESTS = "requests_per_second"
    TOKENS = "tokens_per_second"
    WEIGHT = "weight"


RATES = (Quantity.REQUESTS, Quantity.TOKENS)


@dataclass(frozen=True, slots=True, order=True)
class Subject:
    """Whose requests a limit counts. Of each part, "" is all together, `EACH` each one separately, or a name."""

    model: str = ""
    version: str = ""
    tenant: str = ""

    def __str__(self) -> str:
        parts = [f"{name} {value}" for name, value in zip(_PARTS, self.parts, strict=True) if value]
        return ", ".join(parts) or "the server"

    @property
    def parts(self) -> tuple[str, str, str]:
        """Model, version and tenant."""
        return self.model, self.version, self.tenant


@dataclass(frozen=True, slots=True)
class LimitKey:
    """What a source sets: of two sources that set the same key, the one with precedence counts."""

    subject: Subject
    quantity: Quantity
    enforced: bool


# Limits of one source: per second, `UNLIMITED` to lift a limit of a source with lower precedence.
Limits = Mapping[LimitKey, int]


def read_limits(document: object, where: str, line_of: Callable[[int], int] | None = None) -> dict[LimitKey, int]:
    """Read `{"limits": [{"model": …, "requests_per_second": …}, …]}`. Raises ConfigError with place and remedy.

    `line_of` returns the line of a limit by its index, where the text is known.
    """
    if document is None:
        return {}
    if not isinstance(document, Mapping) or set(document) - {"limits"}:
        raise ConfigError(f"{where}: expected one key 'limits' with a list of limits")
    entries = document.get("limits")
    if entries is None:
        return {}
    if not isinstance(entries, list):
        raise ConfigError(f"{where}: 'limits' must be a list, got {_shown(entries)}")
    if len(entries) > MAX_LIMITS:
        raise ConfigError(f"{where}: {len(entries)} limits exceed the maximum of {MAX_LIMITS}")
    limits: dict[LimitKey, int] = {}
    for number, entry in enumerate(entries, 1):
        place = (
            f"{where}: limit {number}" if line_of is None else f"line {line_of(number - 1)} of {where}: limit {number}"
        )
        for key, value in _read_entry(entry, place):
            if key in limits:
                kind = "an enforced" if key.enforced else "a soft"
                raise ConfigError(f"{place} repeats {kind} {key.quantity.value} of {key.subject}")
            limits[key] = value
    return limits


def _read_entry(entry: object, where: str) -> Iterable[tuple[LimitKey, int]]:
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{where} must be a mapping with {', '.join(_FIELDS)}, got {_shown(entry)}")
    for name in entry:
        if name not in _FIELDS:
            raise ConfigError(f"{where}: unknown key {_shown(name)}, expected one of {', '.join(_FIELDS)}")
    enforced = entry.get("enforced", False)
    if not isinstance(enforced, bool):
        raise ConfigError(f"{where}: 'enforced' must be true or false, got {_shown(enforced)}")
    subject = Subject(
        _name(entry, "model", where), _version(entry.get("version"), where), _name(entry, "tenant", where)
    )
    if subject.version and not subject.model:
        raise ConfigError(f"{where}: 'version' needs 'model'; \"*\" stands for each model")
    keys = [quantity for quantity in Quantity if entry.get(quantity.value) is not None]
    if not keys:
        raise ConfigError(f"{where} has none of {', '.join(quantity.value for quantity in Quantity)}")
    for quantity in keys:
        value = entry[quantity.value]
        if quantity is Quantity.WEIGHT:
            yield LimitKey(subject, quantity, enforced=False), _read_weight(value, subject, where, enforced)
        else:
            yield LimitKey(subject, quantity, enforced), read_per_second(value, f"{where}: '{quantity.value}'")


def _read_weight(value: object, subject: Subject, where: str, enforced: bool) -> int:
    if not subject.tenant or subject.version or enforced:
        raise ConfigError(
            f"{where}: 'weight' needs 'tenant'; it may have 'model', but neither 'version' nor 'enforced'"
        )
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_WEIGHT:
        raise ConfigError(f"{where}: 'weight' must be a whole number from 1 to {MAX_WEIGHT}, got {_shown(value)}")
    return value


def read_per_second(value: object, where: str) -> int:
    """Return a number per second from a number or a text such as "80" or "1e3". Raises ConfigError."""
    if isinstance(value, str) and value.strip().lower() == "unlimited":
        return UNLIMITED
    text = value.strip() if isinstance(value, str) else repr(value)
    if isinstance(value, bool) or not isinstance(value, str | int | float) or not _NUMBER.fullmatch(text):
        remedy = _LEADING_NUMBER.match(text)
        example = remedy[1] if remedy and isinstance(value, str) else "80"
        raise ConfigError(f"{where}: {_shown(value)} is not a number per second; write {example}")
    number = Decimal(text)
    if number < 0:
        raise ConfigError(
            f"{where}: {_shown(value)} is negative; expected 0, which refuses everything, or more; "
            '"unlimited" lifts a limit of another source'
        )
    if number > MAX_PER_SECOND:
        raise ConfigError(f"{where}: {_shown(value)} exceeds the maximum of {MAX_PER_SECOND} per second")
    if number != int(number):
        raise ConfigError(f"{where}: {_shown(value)} is not a whole number per second")
    return int(number)


def describe(limits: Limits) -> list[dict[str, Any]]:
    """Return limits as documents that `read_limits` reads, sorted by subject."""
    return [describe_limit(key, limits[key]) for key in sorted(limits, key=_order)]


def describe_limit(key: LimitKey, value: int) -> dict[str, Any]:
    """Return one limit as a document."""
    subject = {name: part for name, part in zip(_PARTS, key.subject.parts, strict=True) if part}
    return {**subject, key.quantity.value: "unlimited" if value == UNLIMITED else value, "enforced": key.enforced}


def _order(key: LimitKey) -> tuple[Subject, str, bool]:
    return key.subject, key.quantity.value, key.enforced


def _name(entry: Mapping[Any, Any], field: str, where: str) -> str:
    value = entry.get(field)
    if value is None:
        return ""
    if not isinstance(value, str) or not value or len(value) > MAX_NAME_LENGTH or not value.isprintable():
        raise ConfigError(
            f"{where}: '{field}' must be a name, or \"*\" for each; omit it for all together; got {_shown(value)}"
        )
    return value


def _version(value: object, where: str) -> str:
    if value is None:
        return ""
    text = str(value)
    if value == EACH or (not isinstance(value, bool) and text.isascii() and text.isdecimal() and len(text) <= 19):
        return text if value == EACH else str(int(text))
    raise ConfigError(
        f"{where}: 'version' must be a number, or \"*\" for each; omit it for all together; got {_shown(value)}"
    )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def read_limits_file(path: Path) -> dict[LimitKey, int]:
    """Read a file of limits. Raises ConfigError with its line where that is known."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(f"'{path}' exceeds the maximum of {MAX_FILE_BYTES} bytes")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read '{path}': {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"'{path}' is not UTF-8 text") from None
    return read_limits_text(text, f"'{path}'")


def read_limits_text(text: str, where: str) -> dict[LimitKey, int]:
    """Read limits from YAML, of which JSON is a part. Raises ConfigError."""
    try:
        from conch.base.yaml_documents import YamlError, load_document
    except ModuleNotFoundError:
        raise ConfigError(f"reading YAML needs the package pyyaml: {install_command('monitoring')}") from None
    try:
        document = load_document(text, unique_keys=True)
    except YamlError as error:
        raise ConfigError(f"line {error.line} of {where}: {error}") from None
    if document.value is None:
        return {}
    return read_limits(document.value, where, lambda index: document.line(("limits", index)))


async def watch_limits_file(path: Path, changed: Callable[[], Awaitable[None]]) -> None:
    """Call `changed` when the file has changed, is replaced, appears or disappears."""
    known = await asyncio.to_thread(file_stamp, path)
    while True:
        await asyncio.sleep(POLL_S)
        stamp = await asyncio.to_thread(file_stamp, path)
        if stamp != known:
            known = stamp
            await changed()


def read_annotations(document: Mapping[str, Any]) -> dict[LimitKey, int]:
    """Read the limits of an object of the API server. Raises ConfigError that names the annotation."""
    metadata = document.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    if not isinstance(annotations, Mapping):
        return {}
    for name in annotations:
        if str(name).startswith(_OURS) and name not in KNOWN:
            raise ConfigError(f"unknown annotation '{name}', expected one of {', '.join(KNOWN)}")
    enforced = _flag(annotations, ENFORCED)
    limits: dict[LimitKey, int] = {}
    for name, quantity in (
        (MAX_QPS, Quantity.REQUESTS),
        (QUALIFIED_MAX_QPS, Quantity.REQUESTS),
        (MAX_TOKENS, Quantity.TOKENS),
    ):
        if name in annotations:
            value = read_per_second(annotations[name], f"annotation {name}")
            limits[LimitKey(Subject(EACH), quantity, enforced)] = value
    if LIMITS in annotations:
        limits |= read_limits_text(str(annotations[LIMITS]), f"annotation {LIMITS}")
    if _flag(annotations, SHARED):
        replicas = _replicas(document)
        limits = {
            key: value if key.quantity is Quantity.WEIGHT else _share(value, replicas) for key, value in limits.items()
        }
    return limits


def _flag(annotations: Mapping[str, Any], name: str) -> bool:
    value = annotations.get(name, "false")
    if value not in ("true", "false"):
        raise ConfigError(f'annotation {name}: {str(value)[:40]!r} must be "true" or "false"')
    return bool(value == "true")


def _replicas(document: Mapping[str, Any]) -> int:
    spec = document.get("spec")
    replicas = spec.get("replicas") if isinstance(spec, Mapping) else None
    return replicas if type(replicas) is int and replicas > 0 else 1


def _share(value: int, replicas: int) -> int:
    return value if value in (0, UNLIMITED) else max(value // replicas, 1)
