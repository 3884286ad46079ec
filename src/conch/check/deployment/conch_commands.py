"""Check the arguments of containers with Conch's image, which replace the image's own: `serve`."""

import re
from collections.abc import Iterator, Sequence

from conch.base.suggestion import closest
from conch.check.deployment.command_lines import Word, check_words
from conch.check.finding import Finding

# The sub-commands of `conch`; a test compares them with those of its command line.
COMMANDS = frozenset(
    (
        *(
            "advise",
            "alerts",
            "audit",
            "autoscale",
            "bench",
            "chat",
            "check",
            "client",
            "dashboards",
            "drill",
            "engine",
        ),
        *("fleet", "gpu-exporter", "health", "k8s", "repo", "rules", "serve", "trace", "translate", "tune", "tunnel"),
    )
)
_IMAGE = re.compile(r"(?:^|/)conch(?:-server)?(?:[:@]|$)")
_PROGRAMS = ("conch", "/opt/conch/bin/conch")
_ALONE = ("--help", "--version")
_VARIES = re.compile(r"[$<{]|\.\.\.|…")


def check_conch_command(image: str, command: Sequence[Word], arguments: Sequence[Word]) -> Iterator[Finding]:
    """Check what a container runs: `command` replaces the image's entry point, `conch`, if it is not empty."""
    if command and command[0].text not in _PROGRAMS:
        return
    words = [*command[1:], *arguments]
    if not words or (not command and not _IMAGE.search(image)):
        return
    first, *following = words
    if _VARIES.search(first.text) or first.text in _ALONE:
        return
    if first.text in COMMANDS:
        # Those on one line are read as in scripts.
        if first.text == "serve" and not (command and command[0].place.line == first.place.line):
            yield from check_words(following)
    elif first.text.startswith("-"):
        yield Finding("command-missing", first.place, f"the container runs `conch {first.text}`, without a command")
    else:
        near = closest(first.text, sorted(COMMANDS))
        cure = f"Did you mean {near}?" if near else f"Commands: {', '.join(sorted(COMMANDS))}"
        message = f"the container runs `conch {first.text}`, which is not a command"
        yield Finding("command-missing", first.place, message, cure)
