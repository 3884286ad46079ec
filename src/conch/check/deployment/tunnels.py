"""Check ssh commands for forwarded ports that are open to the network."""

import re
from collections.abc import Iterator

from conch.check.finding import Finding
from conch.check.source import SourceFile

_SSH = re.compile(r"(?<![\w./-])(?:/usr/bin/)?(?:auto)?ssh(?![\w.-])[ \t\"',]+(?=-|\\)")
_FORWARD = re.compile(r"(?<!\S)-\w*?([LRD])[ \t]*[\"']?((?:0\.0\.0\.0|\*|\[::\]|::):[^\s\"']+)")
_GATEWAY = re.compile(r"(?<!\S)-\w*?g\w*(?=[ \t\\\n])|GatewayPorts[= ]yes")


def check_tunnels(source: SourceFile) -> Iterator[Finding]:
    """Find `ssh -L 0.0.0.0:…`, also over continuation lines."""
    read = 0
    for command in _SSH.finditer(source.text):
        if command.start() < read:
            continue  # in the command before
        line_begin = source.text.rfind("\n", 0, command.start()) + 1
        if source.text[line_begin : command.start()].lstrip().startswith(("#", "//")):
            continue
        end = read = _end(source.text, command.end())
        text = source.text[command.end() : end]
        for match in _FORWARD.finditer(text):
            message = f"ssh -{match[1]} {match[2]} listens on all addresses"
            yield Finding("tunnel-public", source.at(command.end() + match.start()), message)
        gateway = _GATEWAY.search(text)
        if gateway and re.search(r"(?<!\S)-\w*[LD]", text) and not _FORWARD.search(text):
            message = f"ssh {gateway[0]} makes the forwarded port listen on all addresses"
            yield Finding("tunnel-public", source.at(command.end() + gateway.start()), message)


def _end(text: str, start: int) -> int:
    """Return where a command ends: at the first line end that no backslash continues."""
    match = re.search(r"(?<!\\)\n|[;&|](?!\S)", text[start:])
    return start + match.start() if match else len(text)
