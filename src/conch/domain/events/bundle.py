"""Incident bundles: what is known of a server's last minutes, in one file.

The file is a tar in zstd, which `tar --zstd -tf FILE` lists: a manifest, then what is small, then the event log in
pieces, so that a file that is cut short keeps what is before the cut.
"""

import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from lzma import LZMAError
from pathlib import Path
from typing import Any, Final

import orjson

from conch.base.archives import ArchiveBudget, ArchiveLimits, tar_members, zstd_tar
from conch.base.errors import ConchError, InvalidRequest
from conch.base.typed_json import check_json_values
from conch.domain.events.log import EventLog
from conch.domain.events.merge import merged

FORMAT: Final = 1
SUFFIX: Final = ".conch.tar.zst"
_MANIFEST: Final = "manifest.json"
_EVENTS: Final = "events/"
_KIND: Final = "conch incident bundle"
# A bundle of ten minutes at 1,000 requests per second has 60 MB of contents.
_LIMITS: Final = ArchiveLimits(total_bytes=4 << 30, ratio=200, ratio_from_bytes=64 << 20, entries=10_000)
_MAX_MEMBER_BYTES: Final = 1 << 30
_MAX_FILE_BYTES: Final = 1 << 30
_MAX_EVENT_BYTES: Final = 2 << 30  # of all tables in memory
_RESOLUTION_NS: Final = 250  # of times: 1 ns would take twice the space


@dataclass(frozen=True)
class Bundle:
    """One incident, or a recording.

    `manifest`: id, when it was made, why (`reason`, `detail`), and versions of the server. `models` are configurations
    with their digests, by name and version; `environment` the machine and allowed variables; `requests` what is known
    of single requests beyond the log: hashes or payloads, by choice. `missing` says, in a sentence each, what the file
    should have and has not.
    """

    manifest: Mapping[str, Any] = field(default_factory=dict)
    logs: Sequence[EventLog] = ()  # pieces in the order of time
    metrics: str = ""
    models: Mapping[str, Any] = field(default_factory=dict)
    limits: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    log_lines: str = ""
    requests: Sequence[Mapping[str, Any]] = ()
    missing: Sequence[str] = ()

    @cached_property
    def log(self) -> EventLog:
        """The event log of all pieces, empty without any."""
        return merged(self.logs)

    def to_bytes(self) -> bytes:
        """Return the file."""
        documents: dict[str, Any] = {
            "environment.json": dict(self.environment),
            "models.json": dict(self.models),
            "limits.json": dict(self.limits),
        }
        texts = {"metrics.txt": self.metrics, "log.txt": self.log_lines}
        names = [*documents, *texts, "requests.jsonl", *(f"{_EVENTS}{index:04}" for index in range(len(self.logs)))]
        manifest = {**self.manifest, "kind": _KIND, "format": FORMAT, "members": names, "missing": list(self.missing)}

        def members() -> Iterator[tuple[str, bytes]]:
            yield _MANIFEST, orjson.dumps(manifest, option=orjson.OPT_INDENT_2)
            for name, document in documents.items():
                yield name, orjson.dumps(document, option=orjson.OPT_INDENT_2)
            for name, text in texts.items():
                yield name, text.encode("utf-8", "replace")
            yield "requests.jsonl", b"".join(orjson.dumps(request) + b"\n" for request in self.requests)
            for index, log in enumerate(self.logs):
                yield f"{_EVENTS}{index:04}", log.to_bytes(_RESOLUTION_NS)

        return zstd_tar(members())

    @classmethod
    def read(cls, path: Path) -> "Bundle":
        """Read a file, as much of it as is there; `missing` says what is not.

        Raises InvalidRequest if it is not a bundle, is of a newer version, or expands beyond the limits.
        """
        try:
            size = path.stat().st_size
        except OSError as error:
            raise InvalidRequest(f"cannot read '{path}': {error.strerror or error}") from None
        if size > _MAX_FILE_BYTES:
            raise InvalidRequest(f"'{path}' is not an incident bundle: it has more than {_MAX_FILE_BYTES} bytes")
        contents: dict[str, bytes] = {}
        damage = ""
        try:
            for name, content in _members(path, size):
                contents[name] = content
                if name == _MANIFEST:
                    _check_manifest(path, content)
        except InvalidRequest:
            raise
        except ConchError as error:
            raise InvalidRequest(error.message) from None
        except (OSError, EOFError, tarfile.TarError, LZMAError, zlib.error, ValueError) as error:
            damage = str(error) or type(error).__name__
        if _MANIFEST not in contents:
            raise InvalidRequest(f"'{path}' is not an incident bundle{f': {damage}' if damage else ''}")
        return _Reader(contents).bundle(damage)


class _Reader:
    """Makes a bundle of the contents that a file has."""

    def __init__(self, contents: Mapping[str, bytes]) -> None:
        self._contents = contents
        self._missing: list[str] = []
        self._manifest: dict[str, Any] = orjson.loads(contents[_MANIFEST])

    def bundle(self, damage: str) -> Bundle:
        """Return the bundle; `damage` is why reading ended early."""
        names = self._manifest.get("members")
        names = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
        lost = [name for name in names if name not in self._contents]
        if lost:
            why = f" ({damage})" if damage else ""
            self._missing.append(f"the file is cut short{why}: {', '.join(lost[:8])}{' …' * (len(lost) > 8)} missing")
        elif damage:
            self._missing.append(f"the end of the file is damaged: {damage}")
        recorded = self._manifest.get("missing")
        self._missing += [str(text)[:1000] for text in recorded[:100]] if isinstance(recorded, list) else []
        return Bundle(
            self._manifest,
            tuple(self._logs()),
            self._text("metrics.txt"),
            self._document("models.json"),
            self._document("limits.json"),
            self._document("environment.json"),
            self._text("log.txt"),
            tuple(self._requests()),
            tuple(self._missing),
        )

    def _logs(self) -> Iterator[EventLog]:
        size = 0
        for name in sorted(name for name in self._contents if name.startswith(_EVENTS)):
            try:
                log = EventLog.of_bytes(self._contents[name]).checked()
            except ConchError as error:
                self._missing.append(f"{name}: {error.message}")
                continue
            size += sum(table.nbytes for table in log.tables.values())
            if size > _MAX_EVENT_BYTES:
                self._missing.append(f"{name} and later ones: the events take more than {_MAX_EVENT_BYTES} bytes")
                return
            yield log

    def _text(self, name: str) -> str:
        return self._contents.get(name, b"").decode("utf-8", "replace")

    def _document(self, name: str) -> dict[str, Any]:
        content = self._contents.get(name)
        if content is None:
            return {}
        value = _json(content)
        if not isinstance(value, dict):
            self._missing.append(f"{name} is damaged")
            return {}
        return value

    def _requests(self) -> Iterator[dict[str, Any]]:
        damaged = 0
        for line in self._contents.get("requests.jsonl", b"").splitlines():
            value = _json(line)
            if isinstance(value, dict):
                yield value
            else:
                damaged += 1
        if damaged:
            self._missing.append(f"requests.jsonl: {damaged} lines are damaged")


def is_bundle(path: Path) -> bool:
    """Whether a file begins as zstd does. Raises OSError."""
    with path.open("rb") as file:
        return file.read(4) == b"\x28\xb5\x2f\xfd"


def _members(path: Path, size: int) -> Iterator[tuple[str, bytes]]:
    budget = ArchiveBudget(_LIMITS, size, f"'{path}'")
    for member, contents in tar_members(path, f"'{path}'"):
        budget.count()
        budget.spend(member.size)
        if not member.isreg():
            continue
        if member.size > _MAX_MEMBER_BYTES:
            raise InvalidRequest(f"'{path}': {member.name!a} has more than {_MAX_MEMBER_BYTES} bytes")
        content = contents().read()
        if len(content) < member.size:
            raise EOFError("the end of the file is missing")
        if ".json" in member.name:
            try:
                check_json_values(content)
            except ValueError as error:
                raise InvalidRequest(f"'{path}': {member.name!a} has {error}") from None
        yield member.name, content


def _check_manifest(path: Path, content: bytes) -> None:
    """Raise InvalidRequest unless a manifest is of a bundle that this version reads."""
    manifest = _json(content)
    if not isinstance(manifest, dict) or manifest.get("kind") != _KIND:
        raise InvalidRequest(f"'{path}' is not an incident bundle")
    version = manifest.get("format")
    if not isinstance(version, int) or version > FORMAT:
        raise InvalidRequest(
            f"'{path}' was written by a newer version of Conch: the format of the bundle is {str(version)[:20]}, "
            f"this version reads up to {FORMAT}"
        )


def _json(content: bytes) -> Any:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        return None
