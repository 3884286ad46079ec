"""`conch audit`: check the audit log of limits."""

import json
import re
import sys
from argparse import ArgumentTypeError
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from conch.base.command_line.command_parser import CommandParser

_INTACT, _DAMAGED, _UNREADABLE = 0, 1, 2


def audit(arguments: Sequence[str]) -> int:
    """Run a command on audit logs, and return the exit status."""
    parser = CommandParser("conch audit", description="Work with the audit log of limits (--limits-audit-log).")
    commands = parser.add_subparsers(title="commands", metavar="command", dest="command", required=True)
    text = "find records that were changed, removed or moved; exit status 1 if there are any"
    verify = commands.add_parser("verify", help=text, description=text)
    verify.add_argument(
        "files", metavar="FILE", nargs="+", type=Path, help="the log and its rotated files, in any order: audit.jsonl*"
    )
    verify.add_argument(
        "--expect-record",
        type=_record,
        action="append",
        default=[],
        metavar="N:HASH",
        help="a record that must be in the log, from the server's log or an earlier verification; repeatable",
    )
    verify.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args(arguments)
    return _verify(given.files, dict(given.expect_record), as_json=given.json)


def _record(text: str) -> tuple[int, str]:
    number, _, digest = text.partition(":")
    if not number.isdecimal() or not re.fullmatch("[0-9a-f]{64}", digest):
        raise ArgumentTypeError(f"'{text}' must be a number and a hash, such as 42:3f0e…")
    return int(number), digest


def _verify(files: Sequence[Path], expected: Mapping[int, str], *, as_json: bool) -> int:
    from conch.server.limits.audit_log import has_records, verify

    try:
        chain = verify(files, expected)
        if chain.findings and not chain.records and not any(has_records(path) for path in files):
            names = ", ".join(map(str, files))
            print(f"conch audit: {names}: not an audit log; no line is a record of --limits-audit-log", file=sys.stderr)
            return _UNREADABLE
    except OSError as error:
        print(f"conch audit: cannot read '{error.filename}': {error.strerror}", file=sys.stderr)
        return _UNREADABLE
    if as_json:
        findings = [asdict(finding) for finding in chain.findings]
        document = {"records": chain.records, "first": chain.first_seq, "last": chain.seq, "hash": chain.hash}
        print(json.dumps({"intact": bool(chain.records) and not findings, **document, "findings": findings}))
        return _DAMAGED if findings else _INTACT if chain.records else _UNREADABLE
    for finding in chain.findings:
        print(finding)
    if chain.findings:
        print(f"damaged: {len(chain.findings)} findings in {chain.records} records", file=sys.stderr)
        return _DAMAGED
    if not chain.records:
        print("conch audit: the files contain no records", file=sys.stderr)
        return _UNREADABLE
    earlier = "" if chain.first_seq == 1 else f"; earlier records than {chain.first_seq} are not in these files"
    print(f"intact: records {chain.first_seq} to {chain.seq}, hash {chain.hash}{earlier}")
    return _INTACT
