"""The hash chain of the audit log: records as lines, and what is wrong with lines. Pure.

A line is a JSON object with sorted keys and `hash`, the SHA-256 of the object without it. `previous` is the hash of the
record before, so a record cannot be changed, removed or moved without breaking the chain behind it.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

GENESIS = "0" * 64
MAX_LINE_BYTES = 32 * 2**20
# `what` of the record that a server writes when it finds the log damaged.
DAMAGE = "damage found"
CONTINUED = "continued"  # `what` of the first record of a file that continues another
FOUND_AT_START = "the server found at its start:"


@dataclass(frozen=True, slots=True)
class ChainFinding:
    """Something that is wrong with an audit log, and where; line 0 is the whole file."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}" if self.line else f"{self.file}: {self.text}"


@dataclass(slots=True)
class Chain:
    """Where a chain of records stands: number and hash of the last one; the hash is "" after a record that was changed.

    `known` is whether a record was read, so that the next one must follow it.
    """

    seq: int = 0
    hash: str = ""
    known: bool = False
    records: int = 0
    first_seq: int = 0
    findings: list[ChainFinding] = field(default_factory=list)


def seal(record: Mapping[str, Any], seq: int, previous: str) -> tuple[bytes, str]:
    """Return the line of a record, without its end, and its hash."""
    body = {**record, "seq": seq, "previous": previous}
    digest = _digest(body)
    return _encode({**body, "hash": digest}), digest


def read_record(line: bytes) -> dict[str, Any] | None:
    """Return the record of a line, whether it fits its chain or not; None if it is not a record."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not isinstance(record.get("hash"), str):
        return None
    return record if type(record.get("seq")) is int and isinstance(record.get("previous"), str) else None


def follow(chain: Chain, name: str, lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Check the lines of a file that continues a chain, and yield its records. Findings are added to the chain.

    Each damage is reported once, at the line where it is: the chain is followed from what each record states.
    """
    for number, line in enumerate(lines, 1):
        if not line.endswith(b"\n"):
            text = "the record is incomplete: a crash while it was written, or the file was truncated"
            chain.findings.append(ChainFinding(name, number, text))
            continue
        record = read_record(line)
        if record is None or not _intact(record, line):
            chain.seq += 1
            chain.hash = ""
            chain.findings.append(ChainFinding(name, number, f"record {chain.seq or '?'} was changed"))
            continue
        if text := _misplaced(chain, record, first=number == 1):
            chain.findings.append(ChainFinding(name, number, text))
        chain.seq, chain.hash, chain.known = record["seq"], record["hash"], True
        chain.first_seq = chain.first_seq or chain.seq
        chain.records += 1
        if record.get("what") == DAMAGE:
            for finding in record.get("findings", ()):
                chain.findings.append(ChainFinding(name, number, f"{FOUND_AT_START} {finding}"))
        yield record


def _intact(record: Mapping[str, Any], line: bytes) -> bool:
    body = {key: value for key, value in record.items() if key != "hash"}
    return _digest(body) == record["hash"] and line.rstrip(b"\n") == _encode(record)


def _misplaced(chain: Chain, record: Mapping[str, Any], *, first: bool) -> str:
    """Return why a record cannot stand behind the one before, or as the first one of a file; "" if it can."""
    seq = record["seq"]
    if first and not chain.known and seq != 1 and record.get("what") != CONTINUED:
        return f"the file begins with record {seq}, which begins no file: the records before it were removed"
    if chain.known and seq != chain.seq + 1:
        return f"record {seq} follows record {chain.seq}: records are missing or out of order"
    if chain.known and chain.hash and record["previous"] != chain.hash:
        return f"record {seq} does not continue record {chain.seq}: one of them was replaced"
    if seq == 1 and record["previous"] != GENESIS:
        return "record 1 continues another record: it was replaced"
    return ""


def check_head(chain: Chain, name: str, head: tuple[int, str] | None) -> None:
    """Compare the end of a chain with the head that was recorded beside it; add a finding if records are missing."""
    if head is None:
        return
    seq, digest = head
    if chain.seq < seq:
        missing = f"record {seq} is" if chain.seq + 1 == seq else f"records {chain.seq + 1} to {seq} are"
        chain.findings.append(ChainFinding(name, 0, f"{missing} missing at the end: the file was truncated"))
    elif chain.seq == seq and chain.hash != digest:
        chain.findings.append(ChainFinding(name, 0, f"the last record, {seq}, is not the one that was written last"))


def check_expected(chain: Chain, hashes: Mapping[int, str], expected: Mapping[int, str], name: str) -> None:
    """Compare records (number → hash) with those that are known from elsewhere; add a finding for each difference."""
    for seq, digest in sorted(expected.items()):
        if hashes.get(seq, "") != digest:
            how = "is another one: the log was rewritten" if seq in hashes else "is missing: the log was truncated"
            chain.findings.append(ChainFinding(name, 0, f"record {seq} {how}; expected the hash {digest}"))


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(_encode(body)).hexdigest()


def _encode(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
