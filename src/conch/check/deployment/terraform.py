"""Check Terraform files, as far as a tolerant reader of their blocks and settings can.

Expressions are not evaluated. Values of charts in here-documents are returned as YAML with their lines in the file, so
that the rules for YAML apply to them.
"""

import re
from collections.abc import Iterator
from textwrap import dedent

from conch.check.deployment.plain_text import is_secret, secret_message
from conch.check.finding import Finding
from conch.check.source import SourceFile

_HEREDOC = re.compile(r"<<-?[ \t]*\"?(\w+)\"?[ \t]*$")
_EXPRESSION = re.compile(r"[$%]\{[^{}]*\}")
_SWITCH = re.compile(r"^[ \t]*enable_(\w+)[ \t]*=[ \t]*false\b", re.MULTILINE)
_SETTING = re.compile(r"^[ \t]*\"?(\w+)\"?[ \t]*=[ \t]*\"((?:[^\"\\\n]|\\.)*)\"", re.MULTILINE)
_VARIABLE = re.compile(r"^[ \t]*variable[ \t]+\"(\w+)\"[ \t]*\{(.{0,4000}?)^[ \t]*\}", re.DOTALL | re.MULTILINE)
_DEFAULT = re.compile(r"\bdefault[ \t]*=[ \t]*\"((?:[^\"\\\n]|\\.)*)\"")
_BLOCK = re.compile(
    r"^[ \t]*(?:ingress|resource[ \t]+\"aws_(?:vpc_)?security_group_(?:ingress_)?rule\"[^{]*)[ \t]*=?[ \t]*\{",
    re.MULTILINE,
)
_ANYWHERE = re.compile(r"\"(?:0\.0\.0\.0/0|::/0)\"")
_PORT = re.compile(r"\b(from|to)_port[ \t]*=[ \t]*(-?\d+)")
_MAX_CHARACTERS = 256 << 10  # of a file that was written by hand
_MAX_BLOCK_CHARACTERS = 4000
_WATCHED_PORTS = {22: "SSH", 8000: "HTTP", 8001: "gRPC", 8002: "metrics", 9400: "GPU metrics"}


def check_terraform(source: SourceFile) -> Iterator[Finding]:
    """Check one file."""
    if len(source.text) > _MAX_CHARACTERS:
        return
    text = _without_comments(source.text)
    for match in _SWITCH.finditer(text):
        configured = re.search(rf"^[ \t]*{re.escape(match[1])}\w*_config[ \t]*=[ \t]*\{{", text, re.MULTILINE)
        if configured:
            name = configured[0].strip(" \t={")
            message = f"enable_{match[1]} is false, but {name} is given"
            at = match.start() + len(match[0]) - len(match[0].lstrip())
            yield Finding("terraform-disabled", source.at(at), message, f"Set enable_{match[1]} = true.")
    settings = [(match, match[1], match[2]) for match in _SETTING.finditer(text)]
    defaults = [(variable, _DEFAULT.search(variable[2])) for variable in _VARIABLE.finditer(text)]
    settings += [(variable, variable[1], default[1]) for variable, default in defaults if default]
    for match, name, value in settings:
        if is_secret(name, value) and not re.fullmatch(r"[\w-]*[Tt]oken|name|[A-Z_]+", value):
            yield Finding("secret-text", source.at(match.start(1)), secret_message(name))
    yield from _open_ports(source, text)


def _open_ports(source: SourceFile, text: str) -> Iterator[Finding]:
    for match in _BLOCK.finditer(text):
        block = text[match.end() : _closing(text, match.end())]
        ports = {which: int(number) for which, number in _PORT.findall(block)}
        if not _ANYWHERE.search(block) or "from" not in ports or 'type = "egress"' in re.sub(r"[ \t]+", " ", block):
            continue
        begin, end = ports["from"], ports.get("to", ports["from"])
        open_ports = [f"{port} ({name})" for port, name in _WATCHED_PORTS.items() if begin <= port <= end]
        if open_ports:
            begin_at = match.start() + len(match[0]) - len(match[0].lstrip())
            message = f"port {', '.join(open_ports)} is open to 0.0.0.0/0"
            yield Finding("terraform-open-port", source.at(begin_at), message)


def embedded_yaml(source: SourceFile) -> Iterator[SourceFile]:
    """Yield the here-documents of a file as YAML, each on the lines that it has in the file."""
    lines = source.text.split("\n")
    number = 0
    while number < len(lines):
        begin = _HEREDOC.search(lines[number])
        number += 1
        if begin is None:
            continue
        end = next((at for at in range(number, len(lines)) if lines[at].strip() == begin[1]), None)
        if end is None:
            return
        text = "\n".join(lines[number:end])
        yield SourceFile(source.path, "\n" * number + dedent(_EXPRESSION.sub("expression", text)))
        number = end + 1


def _without_comments(text: str) -> str:
    """Blank out comments, keeping all offsets."""

    def blank(match: re.Match[str]) -> str:
        return match[0] if match[0].startswith('"') else re.sub(r"[^\n]", " ", match[0])

    return re.sub(r"\"(?:[^\"\\\n]|\\.)*\"|#[^\n]*|//[^\n]*|/\*.*?\*/", blank, text, flags=re.DOTALL)


def _closing(text: str, start: int) -> int:
    """Return the offset of the brace that closes a block that was opened before `start`."""
    depth = 1
    for match in re.finditer(r"[{}]", text[start : start + _MAX_BLOCK_CHARACTERS]):
        depth += 1 if match[0] == "{" else -1
        if depth == 0:
            return start + match.start()
    return min(start + _MAX_BLOCK_CHARACTERS, len(text))
