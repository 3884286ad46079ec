"""Parse `ServerOptions` from the command line and the environment, whose variables have a lower precedence.

Parsing is strict: unknown flags, invalid values and stray words are all problems, and all problems are reported
together.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conch.base.command_line.flags import ENVIRONMENT_PREFIX, Flag, Standing
from conch.base.suggestion import closest
from conch.server.options.checks import check_options, platform_options, platform_variables
from conch.server.options.server_options import FLAGS, STRICT_MODEL_CONFIG, ServerOptions

_MIN_VARIABLE_SIMILARITY = 0.75  # of difflib, for a suggestion
_MIN_FLAG_SIMILARITY = 0.6
_FOLDER_FLAG = "model-repository"  # suggested for a folder without a flag
_MODEL_FILE = re.compile(r"\.(gguf|onnx|xml|pt|pt2|pth|bst|ubj|tl|joblib|pkl|safetensors)$", re.IGNORECASE)
_NO_SUGGESTION = "--help lists all flags"
_MISSING = " is missing"
_FLAG = re.compile(r"--([a-z0-9][a-z0-9_-]*)")
_VARIABLE = re.compile(rf"{ENVIRONMENT_PREFIX}[A-Z0-9_]+")
_SERVICE_NAME = re.compile(r"_SERVICE_HOST$|_SERVICE_PORT(_[A-Z0-9_]+)?$|_PORT_[0-9]+_(TCP|UDP|SCTP)(_[A-Z]+)?$")
_OF_THE_BUILD = frozenset({"CONCH_COMPILE", "CONCH_COMPILE_LEVEL"})  # pip reads them
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://")


@dataclass(frozen=True, slots=True)
class Given:
    """A value of a flag with its source: `--http-port` or `CONCH_HTTP_PORT`."""

    flag: Flag
    value: object
    source: str


class OptionError(Exception):
    """The command line or the environment is invalid. `problems` has one sentence for each problem."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


def parse(argv: Iterable[str], environ: Mapping[str, str]) -> ServerOptions:
    """Parse the words after `conch serve` and the environment; check that named files exist.

    Raises OptionError with every problem found.
    """
    problems: list[str] = []
    arguments = read_arguments(FLAGS, argv, problems)
    in_arguments = {given.flag for given in arguments}
    variables = [given for given in read_environment(FLAGS, environ, problems) if given.flag not in in_arguments]
    unknown = unknown_variables(FLAGS, environ)
    notices = list(unknown)
    values: dict[str, Any] = {}
    for given in (*variables, *arguments):
        _apply(given, values, notices)
    values = {**platform_options(environ), **values, "platform_variables": platform_variables(environ)}
    options = ServerOptions(**values, notices=tuple(dict.fromkeys(notices)))
    problems += independent_problems(FLAGS, problems, check_options(options))
    if problems:
        raise OptionError(dict.fromkeys((*problems, *unknown)))
    return options


def _apply(given: Given, values: dict[str, Any], notices: list[str]) -> None:
    """Put one value into `values`, or append to `notices` why it is not used."""
    flag, name = given.flag, given.flag.attribute
    if flag is STRICT_MODEL_CONFIG:
        notices.append(f"{given.source} is deprecated; use --disable-auto-complete-config")
        values["disable_auto_complete_config"] = given.value or values.get("disable_auto_complete_config", False)
    elif flag.replaced_by:
        notices.append(f"{given.source} is deprecated; use --{flag.replaced_by}")
        name = flag.replaced_by.replace("-", "_")
        values[name] = (given.value, *values.get(name, ()))  # the last value applies, so the successor's has precedence
    elif flag.standing is Standing.IGNORED:
        notices.append(f"{given.source} has no effect: {flag.reason}")
    elif flag.repeatable:
        values[name] = (*values.get(name, ()), given.value)
    else:
        values[name] = given.value


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

    These are not errors: other programs may set such variables. Those of the build are skipped, and those that
    Kubernetes and Docker set for a service with the name `conch`.
    """
    known = sorted({flag.variable for flag in flags})
    notices = []
    for name, value in sorted(environ.items()):
        if not name.upper().startswith(ENVIRONMENT_PREFIX) or name in known:
            continue
        if name in _OF_THE_BUILD or _of_a_service(name, value):
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
        got = "another value" if flag.kind.secrets(text) else f"'{text}'"
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
            return f"'conch run {word}' serves a file, 'conch repo add {word}' adds it to a --{_FOLDER_FLAG}, ./models"
    return "flags begin with two dashes"


def _suggestion(name: str, known: Iterable[str]) -> str:
    near = closest(name.replace("_", "-").lower(), known, _MIN_FLAG_SIMILARITY)
    return f"did you mean '--{near}'?" if near else _NO_SUGGESTION
