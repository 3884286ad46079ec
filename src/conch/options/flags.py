"""What a command-line flag is: its name, the values it takes, where else it may come from, what becomes of it.

Nothing here knows a particular flag. `options.py` holds those that the server acts upon, `foreign_flags.py` the rest of
Triton's. Reading is strict: a flag that is not known, a value that does not fit and a word that belongs to no flag are
all problems, and all of them are reported at once.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from pathlib import Path

from conch.options.flag_values import ValueKind

ENVIRONMENT_PREFIX = "CONCH_"

_NEAR_VARIABLE = 0.75  # how alike a variable and the one that was probably meant are
_FOLDER_FLAG = "model-repository"  # what a folder that is given without a flag is probably meant for
_FLAG = re.compile(r"--([a-z0-9][a-z0-9_-]*)")
_VARIABLE = re.compile(rf"{ENVIRONMENT_PREFIX}[A-Z0-9_]+")
_SERVICE_NAME = re.compile(r"_SERVICE_HOST$|_SERVICE_PORT(_[A-Z0-9_]+)?$|_PORT_[0-9]+_(TCP|UDP|SCTP)(_[A-Z]+)?$")
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://")


class Standing(Enum):
    """What the server does with a flag."""

    SUPPORTED = "supported"
    IGNORED = "accepted, without effect"  # tunes something that this server does not have
    REFUSED = "refused"  # would change what clients get, and this server does not do it


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag of the command line, with everything that help, documentation and the parser need."""

    name: str  # without the dashes
    group: str
    help: str
    kind: ValueKind
    default: object
    repeatable: bool = False
    bare: bool = False  # may stand without a value, as getopt's no_argument
    aliases: tuple[str, ...] = ()
    separator: str = ","  # between the values of a repeatable flag in its environment variable
    standing: Standing = Standing.SUPPORTED
    reason: str = ""  # why it is ignored or refused
    replaced_by: str = ""  # the repeatable flag that its value is given to, being an older form of it
    # Whether a value of a refused flag asks for nothing but what happens anyway.
    harmless: Callable[[object], bool] = lambda _value: False

    @property
    def attribute(self) -> str:
        """The name as a Python identifier."""
        return self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        """The environment variable that stands for the flag."""
        return ENVIRONMENT_PREFIX + self.attribute.upper()


@dataclass(frozen=True, slots=True)
class Given:
    """One value of one flag, and where it was found: `--http-port` or `CONCH_HTTP_PORT`."""

    flag: Flag
    value: object
    source: str


def read_arguments(flags: Sequence[Flag], argv: Iterable[str], problems: list[str]) -> list[Given]:
    """Read `--flag=value` and `--flag value`, in order. What cannot be read is appended to `problems`."""
    by_name = {name: flag for flag in flags for name in (flag.name, *flag.aliases)}
    given: list[Given] = []
    words = list(argv)
    while words:
        word = words.pop(0)
        if not word.startswith("--") or word == "--":
            # Naming the flag here keeps its absence from being reported as a second problem.
            meant = f"; did you mean '--{_FOLDER_FLAG}={word}'?" if _is_folder_flag(word, by_name) else ""
            problems.append(f"unexpected argument '{word}'{meant or '; flags begin with two dashes'}")
            continue
        name, equals, text = word[2:].partition("=")
        flag = by_name.get(name)
        if flag is None:
            problems.append(f"unknown flag '--{name}'" + _suggestion(name, by_name, "--"))
            # `--unknown value`: the value belongs to the flag and is not a second mistake.
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
    """Read the flags' environment variables. A repeatable flag's values are separated by its separator."""
    given: list[Given] = []
    for flag in flags:
        text = environ.get(flag.variable)
        if text is None:
            continue
        parts = [part for part in text.split(flag.separator) if part] if flag.repeatable else [text]
        for part in parts:
            _read_value(flag, part, flag.variable, given, problems)
    return given


def misspelt_variables(flags: Sequence[Flag], environ: Mapping[str, str]) -> list[str]:
    """Return a notice for each variable that looks like a flag's but is none.

    Other programs may set variables of this prefix, so none is an error. Those that Kubernetes and Docker set for a
    service of the name `conch` are passed over.
    """
    known = sorted({flag.variable for flag in flags})
    notices = []
    for name, value in sorted(environ.items()):
        if not name.upper().startswith(ENVIRONMENT_PREFIX) or name in known or _of_a_service(name, value):
            continue
        near = get_close_matches(name.upper(), known, n=1, cutoff=_NEAR_VARIABLE)
        meant = f"did you mean {near[0]}?" if near else "it is ignored"
        notices.append(f"environment variable {name} stands for no flag; {meant}")
    return notices


def independent(flags: Sequence[Flag], problems: Iterable[str], found: Iterable[str]) -> list[str]:
    """Return what was `found` that is not due to earlier problems: that names no flag which one of those names."""
    unread = _flags_named(flags, "\n".join(problems))
    return [each for each in found if not unread & _flags_named(flags, each)]


def _flags_named(flags: Sequence[Flag], text: str) -> frozenset[str]:
    """Return the names of the flags in a text, those of variables and of suggestions included."""
    by_variable = {flag.variable: flag.name for flag in flags}
    names = {name.replace("_", "-") for name in _FLAG.findall(text)}
    return frozenset(names | {by_variable[name] for name in _VARIABLE.findall(text) if name in by_variable})


def _of_a_service(name: str, value: str) -> bool:
    return bool(_SERVICE_NAME.search(name) or (name.endswith("_PORT") and _SERVICE_ADDRESS.match(value)))


def _read_value(flag: Flag, text: str, source: str, given: list[Given], problems: list[str]) -> None:
    try:
        value = flag.kind.read(text)
    except ValueError:
        got = "something else" if flag.kind.secret else f"'{text}'"
        problems.append(f"{source}: got {got}, but wants {flag.kind.allowed}")
    else:
        given.append(Given(flag, value, source))


def _is_folder_flag(word: str, known: Iterable[str]) -> bool:
    return _FOLDER_FLAG in known and not word.startswith("-") and Path(word).is_dir()


def _suggestion(name: str, known: Iterable[str], prefix: str) -> str:
    near = get_close_matches(name.replace("_", "-").lower(), known, n=1, cutoff=0.6)
    return f"; did you mean '{prefix}{near[0]}'?" if near else "; --help lists all flags"
