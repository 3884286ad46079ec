"""Check the server's command lines in scripts, Dockerfiles, manifests and texts, and the arguments of containers.

The files are read as lines of words, whatever their format: flags follow `tritonserver` or `conch serve` on the same
line, after a backslash, as elements of a list or as lines of a YAML block.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from conch.base.command_line.command_table import commands
from conch.base.command_line.flags import Flag, Standing
from conch.base.suggestion import closest
from conch.check.finding import Finding, Place
from conch.check.source import SourceFile
from conch.server.options.parser import Given, read_arguments
from conch.server.options.server_options import FLAGS

_PROGRAM = re.compile(
    r"(?:(?<![\w./:@-])|(?<=/bin/))tritonserver(?![\w./:@=-])|(?<![\w./-])conch[\"', \t]+serve(?![\w./-])"
)
_WORD = re.compile(r"(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s\"',\[\]]|,(?=[^\s\"']))+")
_ENDS = re.compile(r"^(?:&&|\|\|?|;|&|\d?>.*|#.*|\)|`.*|<<.*)$")
_VARIES = re.compile(r"[$<{]|\.\.\.|…")
_FLAGS: dict[str, Flag] = {name: flag for flag in FLAGS for name in (flag.name, *flag.aliases)}
_ELEMENT = re.compile(r"[ \t]*(?:-[ \t]+|[\[,][ \t]*)?")
_SPAN = re.compile(r"`([^`\n]+)`")
_MAX_LINE_CHARACTERS = 10_000  # a longer one was not written by hand
_HELP_FLAGS = ("--help", "-h")
# Flags that texts give to servers that have none of them, and what does what they promise.
_INVENTED = {
    "cpu-only": "Remove it: the device is the model's, `instance_group { kind: KIND_CPU }` in config.pbtxt; bound the "
    "server's cores and memory in its container.",
    "gpus": "Remove it: `instance_group { kind: KIND_GPU gpus: [ 0 ] }` in config.pbtxt, or CUDA_VISIBLE_DEVICES.",
    "max-batch-size": "Remove it: max_batch_size is a field of config.pbtxt.",
    "workers": "Remove it: the number of instances is `instance_group { count: N }` in config.pbtxt.",
}
_LIBRARY_CURE = (
    "The server loads no plug-ins for metrics: declare them in YAML, `--metrics-config custom_metrics=FILE.yaml`, or "
    "in model.py with `pb_utils.MetricFamily(…)`."
)
_CONCH_IMAGE = re.compile(r"(?:^|/)conch(?:-server)?(?:[:@]|$)")
_CONCH = ("conch", "/opt/conch/bin/conch")
_ALONE = ("--help", "--version")


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a command line, and where it stands."""

    text: str
    place: Place


def check_command_lines(source: SourceFile) -> Iterator[Finding]:
    """Check every flag of every command line of the server in a file."""
    for words in _commands(source):
        yield from check_words(words)


def check_words(words: list[Word]) -> Iterator[Finding]:
    """Check the flags at the beginning of the words after `serve`, which are removed."""
    while words:
        word = words.pop(0)
        if not word.text.startswith("--"):
            break
        if word.text in _HELP_FLAGS:
            continue
        name, equals, value = word.text[2:].partition("=")
        flag = _FLAGS.get(name)
        if flag is not None and not flag.bare and not equals:
            value = words.pop(0).text if words and not words[0].text.startswith("--") else ""
            equals = "=" if value else ""
        yield from _check(word, name, value if equals else None, flag)


def _check(word: Word, name: str, value: str | None, flag: Flag | None) -> Iterator[Finding]:
    if flag is not None and value is not None and _VARIES.search(value):
        return  # a variable of the shell or a template
    given, problems = _read(f"--{name}" if value is None else f"--{name}={value}")
    for problem in problems:
        cure = _INVENTED.get(name, "") if flag is None else ""
        if name == "metrics-config" and (value or "").endswith(".so"):
            cure = _LIBRARY_CURE
        yield Finding("flag-unknown" if flag is None else "flag-value", word.place, problem, cure)
    for read_flag in given:
        yield from _standing(word, read_flag)


@lru_cache(maxsize=256)
def _read(argument: str) -> tuple[list[Given], list[str]]:
    """Return what the server reads in an argument, and the problems. The search for a similar flag takes long."""
    problems: list[str] = []
    return read_arguments(FLAGS, [argument], problems), problems


def _standing(word: Word, given: Given) -> Iterator[Finding]:
    flag = given.flag
    if flag.standing is Standing.IGNORED:
        yield Finding("flag-no-effect", word.place, f"--{flag.name} has no effect: {flag.reason}")


def _commands(source: SourceFile) -> Iterator[list[Word]]:
    """Yield the words after each occurrence of the server's program."""
    lines = [line if len(line) <= _MAX_LINE_CHARACTERS else "" for line in source.text.split("\n")]
    code = set(range(len(lines)))
    if source.path.suffix == ".md":
        code = fenced_lines(lines)
        for number in set(range(len(lines))) - code:
            for span in _SPAN.finditer(lines[number]):
                if match := _PROGRAM.search(span[1]):
                    yield list(_words(source, number, span[1], match.end(), span.start(1)))
    for number in sorted(code):
        if lines[number].lstrip().startswith(("#", "//")):
            continue
        for match in _PROGRAM.finditer(lines[number]):
            quote = lines[number][match.end() : match.end() + 1] in ("'", '"')  # closes the program's name in a list
            yield list(_following(source, lines, number, match.end() + quote))


def _following(source: SourceFile, lines: list[str], number: int, start: int) -> Iterator[Word]:
    """Yield the words of a command from a place on, also from its continuation lines."""
    line = lines[number]
    while True:
        text, continues = line.rstrip(), False
        if text.endswith("\\"):
            text, continues = text[:-1], True
        needs_value = False
        for word in _words(source, number, text, start):
            yield word
            needs_value = word.text.startswith("--") and "=" not in word.text and word.text not in _HELP_FLAGS
        if _stops(text[start:]):
            return
        number += 1
        while number < len(lines) and lines[number].lstrip().startswith("#"):
            number += 1
        if number == len(lines):
            return
        line = lines[number]
        if _PROGRAM.search(line):
            return  # read from there
        start = _ELEMENT.match(line).end()  # type: ignore[union-attr]  # it matches any text
        is_flag = line[start:].lstrip("\"'").startswith("--")
        is_value = needs_value and line.lstrip().startswith(("- ", '"', "'"))
        if not (continues or is_flag or is_value):
            return


def _stops(text: str) -> bool:
    return any(_ENDS.match(word) for word in text.split())


def _words(source: SourceFile, number: int, line: str, start: int, shift: int = 0) -> Iterator[Word]:
    for match in _WORD.finditer(line, start):
        if _ENDS.match(match[0]):
            return
        text = match[0].rstrip(";,)").replace('"', "").replace("'", "")
        if text:
            yield Word(text, Place(source.path, number + 1, match.start() + shift + 1))
        if match[0].endswith(";"):
            return


def fenced_lines(lines: list[str]) -> set[int]:
    """Return the numbers of the lines inside the code blocks of a Markdown text."""
    inside, code = False, set()
    for number, line in enumerate(lines):
        if line.lstrip().startswith(("```", "~~~")):
            inside = not inside
        elif inside:
            code.add(number)
    return code


def check_conch_command(image: str, command: Sequence[Word], arguments: Sequence[Word]) -> Iterator[Finding]:
    """Check what a container runs: `command` replaces the image's entry point, `conch`, if it is not empty."""
    if command and command[0].text not in _CONCH:
        return
    words = [*command[1:], *arguments]
    if not words or (not command and not _CONCH_IMAGE.search(image)):
        return
    first, *following = words
    if _VARIES.search(first.text) or first.text in _ALONE:
        return
    if first.text in commands():
        # Those on one line are read as in scripts.
        if first.text == "serve" and not (command and command[0].place.line == first.place.line):
            yield from check_words(following)
    elif first.text.startswith("-"):
        yield Finding("command-missing", first.place, f"the container runs `conch {first.text}`, without a command")
    else:
        near = closest(first.text, sorted(commands()))
        cure = f"Did you mean {near}?" if near else f"Commands: {', '.join(sorted(commands()))}"
        message = f"the container runs `conch {first.text}`, which is not a command"
        yield Finding("command-missing", first.place, message, cure)
