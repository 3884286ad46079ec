"""The parser of command-line flags and their environment variables.

Particular flags are in `server_options.py`, those of Triton without a counterpart in `triton_only_flags.py`. Parsing is
strict: unknown flags, invalid values and stray words are all problems, and all problems are reported together.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from conch.base.flag_values import ValueKind
from conch.base.suggestion import closest

ENVIRONMENT_PREFIX = "CONCH_"

_MIN_VARIABLE_SIMILARITY = 0.75  # of difflib, for a suggestion
_MIN_FLAG_SIMILARITY = 0.6
_FOLDER_FLAG = "model-repository"  # suggested for a folder without a flag
_MODEL_FILE = re.compile(r"\.(gguf|onnx|xml|pt|pt2|pth|bst|ubj|tl|joblib|pkl|safetensors)$", re.IGNORECASE)
_NO_SUGGESTION = "--help lists all flags"
_MISSING = " is missing"
_FLAG = re.compile(r"--([a-z0-9][a-z0-9_-]*)")
_VARIABLE = re.compile(rf"{ENVIRONMENT_PREFIX}[A-Z0-9_]+")
_SERVICE_NAME = re.compile(r"_SERVICE_HOST$|_SERVICE_PORT(_[A-Z0-9_]+)?$|_PORT_[0-9]+_(TCP|UDP|SCTP)(_[A-Z]+)?$")
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://")


class Standing(Enum):
    """What the server does with a flag."""

    SUPPORTED = "supported"
    IGNORED = "accepted, without effect"  # tunes a mechanism that this server does not have
    REFUSED = "refused"  # would change responses


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag, as parser, help and documentation need it."""

    name: str  # without the dashes
    group: str
    help: str
    kind: ValueKind
    default: object
    repeatable: bool = False
    bare: bool = False  # takes no value, as getopt's no_argument
    aliases: tuple[str, ...] = ()
    separator: str = ","  # between the values of a repeatable flag in its environment variable
    standing: Standing = Standing.SUPPORTED
    reason: str = ""  # why it is ignored or refused
    replaced_by: str = ""  # the repeatable flag that receives the value of this deprecated one
    # Whether a value of a refused flag is the server's behaviour anyway.
    harmless: Callable[[object], bool] = lambda _value: False

    @property
    def attribute(self) -> str:
        """The name as a Python identifier."""
        return self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        """The flag's environment variable."""
        return ENVIRONMENT_PREFIX + self.attribute.upper()


@dataclass(frozen=True, slots=True)
class Given:
    """A value of a flag with its source: `--http-port` or `CONCH_HTTP_PORT`."""

    flag: Flag
    value: object
    source: str


def flag_field(
    default: object,
    group: str,
    text: str,
    kind: ValueKind,
    *,
    repeatable: bool = False,
    bare: bool = False,
    aliases: tuple[str, ...] = (),
    separator: str = ",",
) -> Any:
    """Return a dataclass field that `ServerOptions` turns into a `Flag`."""
    details = {"group": group, "help": text, "kind": kind, "repeatable": repeatable, "bare": bare}
    return field(default=default, metadata={**details, "aliases": aliases, "separator": separator})


def read_arguments(flags: Sequence[Flag], argv: Iterable[str], problems: list[str]) -> list[Given]:
    """Parse `--flag=value` and `--flag value`, in order. Append what is invalid to `problems`."""
    by_name = {name: flag for flag in flags for name in (flag.name, *flag.aliases)}
    given: list[Given] = []
    words = list(argv)
    while words:
        word = words.pop(0)
        if not word.startswith("--") or word == "--":
            problems.append(f"unexpected argument '{word}'; {_meant_by(word, by_name)}")
            continue
        name, equals, text = word[2:].partition("=")
        flag = by_name.get(name)
        if flag is None:
            problems.append(f"unknown flag '--{name}'; {_suggestion(name, by_name)}")
            # In `--unknown value` the value is not a second problem.
            if not equals and words and not words[0].startswith("--"):
                words.pop(0)
            continue
        if not equals:
            if flag.bare:
                text = "true"
            elif words and not words[0].startswith("--"):
                text = words.pop(0)
            else:
                problems.append(f"--{name} needs a value: {flag.kind.allowed}")
                continue
        _read_value(flag, text, f"--{name}", given, problems)
    return given


def read_environment(flags: Sequence[Flag], environ: Mapping[str, str], problems: list[str]) -> list[Given]:
    """Parse the flags' environment variables. Append what is invalid to `problems`."""
    given: list[Given] = []
    for flag in flags:
        text = environ.get(flag.variable)
        if text is None:
            continue
        parts = [part for part in text.split(flag.separator) if part] if flag.repeatable else [text]
        for part in parts:
            _read_value(flag, part, flag.variable, given, problems)
    return given


def unknown_variables(flags: Sequence[Flag], environ: Mapping[str, str]) -> list[str]:
    """Return a notice for each variable with the prefix that does not belong to a flag.

    These are not errors: other programs may set such variables. Those that Kubernetes and Docker set for a service with
    the name `conch` are skipped.
    """
    known = sorted({flag.variable for flag in flags})
    notices = []
    for name, value in sorted(environ.items()):
        if not name.upper().startswith(ENVIRONMENT_PREFIX) or name in known or _of_a_service(name, value):
            continue
        near = closest(name.upper(), known, _MIN_VARIABLE_SIMILARITY)
        consequence = f"did you mean {near}?" if near else "ignored"
        notices.append(f"unknown environment variable {name}; {consequence}")
    return notices


def independent_problems(flags: Sequence[Flag], earlier: Iterable[str], later: Iterable[str]) -> list[str]:
    """Return those of the `later` problems that name none of the flags in the `earlier` ones.

    A flag that could not be parsed has its default, so checks that involve it would report a consequence. An unknown
    flag that resembles none may have been meant for one that is missing.
    """
    before = "\n".join(earlier)
    invalid = _flags_named(flags, before)
    later = [problem for problem in later if not invalid & _flags_named(flags, problem)]
    return [problem for problem in later if _MISSING not in problem] if _NO_SUGGESTION in before else later


def _flags_named(flags: Sequence[Flag], text: str) -> frozenset[str]:
    """Return the names of the flags in a text, also of those in suggestions and of variables."""
    by_variable = {flag.variable: flag.name for flag in flags}
    names = {name.replace("_", "-") for name in _FLAG.findall(text)}
    return frozenset(names | {by_variable[name] for name in _VARIABLE.findall(text) if name in by_variable})


def _of_a_service(name: str, value: str) -> bool:
    return bool(_SERVICE_NAME.search(name) or (name.endswith("_PORT") and _SERVICE_ADDRESS.match(value)))


def _read_value(flag: Flag, text: str, source: str, given: list[Given], problems: list[str]) -> None:
    try:
        value = flag.kind.read(text)
    except ValueError:
        got = "another value" if flag.kind.secret else f"'{text}'"
        problems.append(f"{source}: expected {flag.kind.allowed}, got {got}")
    else:
        given.append(Given(flag, value, source))


def _meant_by(word: str, known: Iterable[str]) -> str:
    """Return what would be right in place of a word without a flag.

    A text that names the repository's flag suppresses the problem that it is missing.
    """
    if _FOLDER_FLAG in known and not word.startswith("-"):
        if "://" in word or Path(word).is_dir():
            return f"did you mean '--{_FOLDER_FLAG}={word}'?"
        if _MODEL_FILE.search(word) or Path(word).is_file():
            return f"add a file to a repository with 'conch repo add {word}', then serve it: --{_FOLDER_FLAG}=models"
    return "flags begin with two dashes"


def _suggestion(name: str, known: Iterable[str]) -> str:
    near = closest(name.replace("_", "-").lower(), known, _MIN_FLAG_SIMILARITY)
    return f"did you mean '--{near}'?" if near else _NO_SUGGESTION
