"""An ArgumentParser whose errors suggest similar commands, choices and options."""

import os
import re
import sys
from argparse import (
    SUPPRESS,
    ArgumentParser,
    HelpFormatter,
    Namespace,
    RawDescriptionHelpFormatter,
    _ArgumentGroup,
    _SubParsersAction,
)
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import MISSING
from pathlib import Path
from textwrap import TextWrapper
from typing import Any, NoReturn

from conch.base.command_line.command_table import examples_text
from conch.base.command_line.flags import Flag, declared_flags
from conch.base.command_line.say import folded
from conch.base.control_characters import printable_lines
from conch.base.suggestion import closest, did_you_mean

# The only argument of a command whose parser is wanted, for completion and tests.
DESCRIBE = "--describe-parser"
_MIN_SIMILARITY = 0.5  # of a suggestion
_MAX_USAGE_LINES = 8
_USAGE_ERROR = 2
_MIN_COLUMNS, _NARROW_INDENT = 60, 6  # of help with two columns; the indent of help with one
_USAGE_PART = re.compile(r"\[[^\]]*\]+|\S+")
_BROKEN_FROM = 90  # columns of a line that the next one may continue
_BEGINS_PARAGRAPH = re.compile(r"\s|$|\w+: ")
_CHOICE = re.compile(
    r"argument (?P<argument>\S+): invalid choice: '(?P<word>[^']*)'.*\(choose from (?P<known>.*)\)", re.DOTALL
)
_UNRECOGNIZED = re.compile(r"unrecognized arguments: (?P<words>.*)", re.DOTALL)


class ParserRequested(Exception):
    """Carries the parser of a command that was called with `DESCRIBE` alone."""

    def __init__(self, parser: "CommandParser") -> None:
        super().__init__(parser.prog)
        self.parser = parser


class NarrowHelp(HelpFormatter):
    """On narrow terminals, puts the help of a flag below its name, and indents the usage less."""

    def __init__(self, prog: str, **more: Any) -> None:
        super().__init__(prog, **more)
        self._is_narrow = self._width < _MIN_COLUMNS
        if self._is_narrow:
            self._max_help_position = _NARROW_INDENT

    def _format_usage(self, *arguments: Any) -> str:
        text = super()._format_usage(*arguments)
        if not self._is_narrow:
            return text
        # Parts such as [--name NAME] are not broken.
        parts = (part.replace(" ", "\0") for part in _USAGE_PART.findall(" ".join(text.split())))
        wrapper = TextWrapper(
            self._width, subsequent_indent=" " * _NARROW_INDENT, break_long_words=False, break_on_hyphens=False
        )
        return wrapper.fill(" ".join(parts)).replace("\0", " ") + "\n\n"


class LaidOutHelp(NarrowHelp, RawDescriptionHelpFormatter):
    """Keeps the lines of descriptions, such as examples, if they fit; fills paragraphs that are broken for length."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines: list[str] = []
        for line in text.splitlines():
            if lines and len(lines[-1]) > _BROKEN_FROM and not _BEGINS_PARAGRAPH.match(line):
                lines[-1] += f" {line}"
            else:
                lines.append(line)
        return "\n".join(self._wrapped(line, width, indent) for line in lines)

    def _wrapped(self, line: str, width: int, indent: str) -> str:
        words = line.lstrip()
        start = indent + line[: len(line) - len(words)]
        rest = f"{start}    " if start else ""
        command, gap, comment = words.partition("  ")
        parts = [line] if len(line) <= width else [command, f"{rest}{comment.strip()}"] if gap else [words]
        wrapper = TextWrapper(width, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False)
        return "\n".join(wrapper.fill(start + part.removeprefix(start)) for part in parts)


class CommandParser(ArgumentParser):
    """An ArgumentParser with suggestions in its errors. argparse uses the same class for its sub-parsers."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **{"formatter_class": NarrowHelp, **more})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does. Raises ParserRequested for `DESCRIBE`."""
        if args is not None and list(args) == [DESCRIBE]:
            raise ParserRequested(self)
        return super().parse_known_args(args, namespace)

    def format_help(self) -> str:
        """Return the help with the command's examples of the table of commands."""
        return super().format_help() + examples_text(self.prog.removeprefix("conch "))

    def add_flags(self, settings: type, groups: Mapping[str, str] | None = None) -> None:
        """Add the flags that a dataclass declares. `groups` are the first headings in their order, with descriptions.

        `settings_of` makes the dataclass: flags that are not given are absent in the namespace.
        """
        titled: dict[str, ArgumentParser | _ArgumentGroup] = {"": self}
        for title, description in (groups or {}).items():
            titled[title] = self.add_argument_group(title, description or None)
        for flag in declared_flags(settings):
            if flag.group not in titled:
                titled[flag.group] = self.add_argument_group(flag.group)
            names = (f"-{name}" if len(name) == 1 else f"--{name}" for name in (*flag.aliases, flag.name))
            titled[flag.group].add_argument(
                *names, dest=flag.attribute, help=flag.help or None, default=SUPPRESS, **_reading(flag)
            )

    def add_quiet_flag(self) -> None:
        """Add --quiet, which `printing` reads."""
        self.add_argument("-q", "--quiet", action="store_true", help="print errors only")

    def error(self, message: str) -> NoReturn:
        """Print the message with a suggestion, and the usage unless it hides the message; exit with status 2."""
        text = folded(f"{self.prog}: error: {printable_lines(self._with_suggestion(message))}\n", sys.stderr)
        usage = self.format_usage()
        if usage.count("\n") > _MAX_USAGE_LINES:
            self.exit(_USAGE_ERROR, f"{text}{self.prog} --help lists all flags.\n")
        self.exit(_USAGE_ERROR, usage + text)

    def _with_suggestion(self, message: str) -> str:
        if match := _CHOICE.match(message):
            known = [word.strip("' ") for word in match["known"].split(",")]
            subject = "unknown command" if match["argument"] == "command" else f"{match['argument']}: unknown value"
            hint = did_you_mean(match["word"].lower(), known, ".", _MIN_SIMILARITY)
            return f"{subject} '{match['word']}'{hint} Known: {', '.join(known)}"
        if match := _UNRECOGNIZED.match(message):
            return message + self._similar_option(match["words"])
        return message

    def _similar_option(self, words: str) -> str:
        options = sorted(option.removeprefix("--") for option in _options(self))
        for word in words.split():
            name = word.partition("=")[0].lower()
            if name.startswith("-") and (near := closest(name.lstrip("-"), options)):
                return f"; did you mean '--{near}'?"
        return f"; see {self.prog} --help"


@contextmanager
def printing(given: Namespace) -> Iterator[None]:
    """Print nothing on stdout within the block if --quiet is given."""
    with ExitStack() as stack:
        if given.quiet:
            stack.enter_context(redirect_stdout(stack.enter_context(Path(os.devnull).open("w"))))
        yield


def _reading(flag: Flag) -> dict[str, Any]:
    """Return the arguments of `add_argument` that say how a flag's value is read."""
    if flag.bare:
        return {"action": "store_false" if flag.default is True else "store_true"}
    reading = {"action": "append" if flag.repeatable else "store", "required": flag.default is MISSING}
    if flag.kind.choices:
        return {**reading, "choices": flag.kind.choices}
    return {**reading, "type": flag.kind.read, "metavar": flag.kind.metavar or None}


def _options(parser: ArgumentParser) -> Iterator[str]:
    """Yield the long options of a parser and of its sub-parsers."""
    for action in parser._actions:
        yield from (option for option in action.option_strings if option.startswith("--"))
        if isinstance(action, _SubParsersAction):
            for parser in set(action.choices.values()):
                yield from _options(parser)
