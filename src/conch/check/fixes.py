"""Apply the edits of findings to files, for `conch check --fix`."""

from collections.abc import Sequence
from difflib import unified_diff
from pathlib import Path

from conch.base.files.atomic import replace_file
from conch.check.finding import Finding
from conch.check.run import Report, check_paths
from conch.check.source import SourceFile

_MAX_ROUNDS = 50


def fix_paths(paths: Sequence[Path], rules: frozenset[str]) -> tuple[Report, str]:
    """Fix findings of these rules if that is safe; return the remaining findings, and the changes as a diff.

    A file is fixed one finding at a time, because one mistake often hides another. Raises OSError if a file cannot be
    written, which is then unchanged.
    """
    before: dict[Path, str] = {}
    report = check_paths(paths)
    for _ in range(_MAX_ROUNDS):
        fixable: dict[Path, Finding] = {}
        for finding in report.findings:
            if finding.edits and finding.rule_id in rules:
                fixable.setdefault(finding.place.path, finding)
        for path, finding in fixable.items():
            source = SourceFile.read(path)
            if source is not None:
                before.setdefault(path, source.text)
                _write(path, source.edited(finding.edits).text)
        if not fixable:
            break
        report = check_paths(paths)
    return report, "".join(_diff(path, text) for path, text in before.items())


def _write(path: Path, text: str) -> None:
    """Replace the text of a file atomically."""
    mark = b"\xef\xbb\xbf" if path.read_bytes().startswith(b"\xef\xbb\xbf") else b""
    replace_file(path.resolve(), mark + text.encode())  # the target of a link, not the link


def _diff(path: Path, before: str) -> str:
    after = SourceFile.read(path)
    lines = unified_diff(
        before.splitlines(), (after.text if after else "").splitlines(), str(path), str(path), lineterm=""
    )
    return "".join(f"{line}\n" for line in lines)
