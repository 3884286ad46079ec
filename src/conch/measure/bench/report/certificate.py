"""The document of a benchmark run. Its JSON is these classes, field by field, and is read strictly."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import orjson

from conch.base.errors import InvalidRequest
from conch.base.typed_json import decode
from conch.domain.benchmark_document import FORMAT, SCHEMA_VERSION, parse_benchmark, read_benchmark
from conch.machine.environment import Environment
from conch.measure.bench.measurement import Effect, Level, Measurement, Note

_MAX_NOTES = 3  # beside the verdict
HIDDEN = "***"
_SECRET_WORDS = ("key", "token", "password", "secret", "authorization", "credential")
# Flags whose names have such a word but hold paths or numbers.
_PUBLIC_ENDINGS = ("-file", "-tokens", "-length", "-path")
_HEADER_FLAGS = ("--header", "-H")


@dataclass(frozen=True, slots=True)
class CertifiedTarget:
    """What was measured. Unknown is ""."""

    url: str  # without credentials and query
    protocol: str  # as of --protocol
    model: str = ""
    model_version: str = ""
    server_name: str = ""
    server_version: str = ""
    config_digest: str = ""  # of the model's configuration as the server reports it


@dataclass(frozen=True, slots=True)
class Saturation:
    """Where more load stops to give more throughput."""

    reached: bool
    level: str  # label of the lowest level with nearly the highest throughput
    throughput: float  # at that level, in `unit`
    unit: str  # "req/s" or "output tok/s"
    knee: float | None = None
    """Estimated concurrency from which requests wait for each other: highest throughput × latency without load."""
    message: str = ""


@dataclass(frozen=True, slots=True)
class AbComparison:
    """The result of measuring two targets in turn."""

    baseline: CertifiedTarget  # A; B is the certificate's own target
    measurements: tuple[Measurement, ...]  # of A
    effects: tuple[Effect, ...]
    verdict: str = ""


@dataclass(frozen=True, slots=True)
class Certificate:
    """One run of `conch bench`."""

    created_at: str  # UTC, ISO 8601
    tool_version: str
    command: tuple[str, ...]  # without secrets, see `public_command`
    target: CertifiedTarget
    environment: Environment
    measurements: tuple[Measurement, ...]
    settings: dict[str, str | int | float | bool | None] = field(default_factory=dict)
    saturation: Saturation | None = None
    ab: AbComparison | None = None
    notes: tuple[Note, ...] = ()  # on the run as a whole; those on a level are with its measurement
    verdict: str = ""  # in words
    schema_version: int = SCHEMA_VERSION


def all_notes(certificate: Certificate) -> tuple[Note, ...]:
    """Return the notes of the run and of its levels, each kind once, the most severe first."""
    notes = list(dict.fromkeys(certificate.notes))
    of_levels: dict[tuple[str, str], list[tuple[str, Note]]] = {}
    for measurement in certificate.measurements:
        for note in measurement.notes:
            of_levels.setdefault((note.code, note.severity), []).append((_name_of(measurement.level), note))
    several = len(certificate.measurements) > 1
    for level in of_levels.values():
        (label, first), others = level[0], [label for label, _ in level[1:]]
        also = f" (also at {', '.join(dict.fromkeys(others))})" if others else ""
        notes.append(Note(first.code, first.severity, f"{label}: {first.message}{also}" if several else first.message))
    severities = ("invalid", "warning", "info")
    return tuple(sorted(notes, key=lambda note: severities.index(note.severity) if note.severity in severities else 3))


def _name_of(level: Level) -> str:
    return f"concurrency {level.label}" if level.kind == "concurrency" else level.label


def verdict_lines(certificate: Certificate) -> list[str]:
    """Return the verdict in words: of the run, of the comparison, of its worst notes, of the load."""
    doubts = [note.message for note in all_notes(certificate) if note.severity in ("invalid", "warning")]
    verdict = certificate.verdict or comparability(certificate)  # older versions wrote none
    lines = [verdict, certificate.ab.verdict if certificate.ab else "", *doubts[:_MAX_NOTES]]
    lines.append(certificate.saturation.message if certificate.saturation else "")
    return [line[0].upper() + line[1:] for line in dict.fromkeys(filter(None, lines))]


def comparability(certificate: Certificate) -> str:
    """Return the verdict on a run by its most severe notes."""
    severities = {note.severity for note in all_notes(certificate)}
    if "invalid" in severities:
        return "Not comparable: do not use these figures."
    return (
        "Usable with care: see the notes."
        if "warning" in severities
        else "Comparable: no note questions these figures."
    )


def target_line(target: CertifiedTarget) -> str:
    """Return model, address, protocol and server of a target."""
    model = f"{target.model} version {target.model_version}" if target.model_version else target.model
    server = f"{target.server_name} {target.server_version}".strip()
    return " · ".join(part for part in (model, target.url, target.protocol, server) if part)


def public_command(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return a command line without values of secret flags, values of headers and credentials in URLs."""
    words = []
    flag = ""
    for word in arguments:
        name, equals, value = word.partition("=")
        if word.startswith("-") and not equals:
            flag = word
            words.append(word)
        elif word.startswith("-"):
            words.append(f"{name}={_public_value(name, value)}")
            flag = ""
        else:
            words.append(_public_value(flag, word))
            flag = ""
    return tuple(words)


def public_url(url: str) -> str:
    """Return a URL without user, password, query and fragment; a host without a scheme stays as it is."""
    if "://" not in url:
        return url.rpartition("@")[2].partition("?")[0]
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def shell_line(command: Sequence[str]) -> str:
    """Return a command as one line that a shell accepts."""
    return shlex.join(command)


def _public_value(flag: str, value: str) -> str:
    name = flag.lower()
    if flag in _HEADER_FLAGS:
        return f"{value.partition(':')[0]}: {HIDDEN}"
    if any(word in name for word in _SECRET_WORDS) and not name.endswith(_PUBLIC_ENDINGS):
        return HIDDEN
    if "://" in value or "@" in value:
        return public_url(value)
    return value


def to_json(certificate: Certificate, *, indent: bool = True) -> bytes:
    """Return a certificate as JSON. Numbers that are not finite become null."""
    document = {"format": FORMAT, **{item.name: getattr(certificate, item.name) for item in fields(certificate)}}
    form = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE if indent else 0
    return orjson.dumps(document, option=form | orjson.OPT_SERIALIZE_NUMPY)


def read_certificate(path: Path) -> Certificate:
    """Read a certificate from a JSON file, or from an HTML file that holds it. Raises InvalidRequest."""
    document = read_benchmark(path)
    try:
        return decode(Certificate, document)
    except ValueError as error:
        raise InvalidRequest(f"'{path}' is not a certificate of conch bench: {error}") from None


def from_json(content: bytes) -> Certificate:
    """Decode a certificate. Raises ValueError with the place of the first problem."""
    return decode(Certificate, parse_benchmark(content))
