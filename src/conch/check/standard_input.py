"""Check a text without a file, such as the standard input of a pre-receive hook or an editor."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from conch.check.finding import Finding, Place, Related
from conch.check.run import Report, check_paths
from conch.check.source import SourceFile, SourceReader

NAME = Path("<stdin>")
# Kind → the name of the file that has such contents.
KINDS = {
    "config": "stdin/config.pbtxt",
    "dockerfile": "Dockerfile",
    "json": "stdin.json",
    "markdown": "stdin.md",
    "python": "stdin.py",
    "shell": "stdin.sh",
    "systemd": "stdin.service",
    "terraform": "stdin.tf",
    "yaml": "stdin.yaml",
}


def check_text(text: str, kind: str) -> Report:
    """Check a text of a kind in `KINDS`. The places of the findings are in a file named `<stdin>`.

    Of a config.pbtxt, rules about other files of the model are left out.
    """
    with TemporaryDirectory(prefix="conch-check-") as folder:
        path = Path(folder) / KINDS[kind]
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text.encode())
        report = check_paths([path])
    findings = tuple(_renamed(each, path) for each in report.findings if each.place.path == path)
    return replace(report, findings=findings, reader=SourceReader([SourceFile(NAME, text)]))


def _renamed(finding: Finding, path: Path) -> Finding:
    def renamed(place: Place) -> Place:
        return replace(place, path=NAME)

    related = tuple(Related(renamed(each.place), each.what) for each in finding.related if each.place.path == path)
    message = finding.message.replace(str(path), str(NAME))
    return replace(finding, place=renamed(finding.place), message=message, related=related, edits=())
