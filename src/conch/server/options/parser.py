"""Parse `ServerOptions` from the command line and the environment, whose variables have a lower precedence."""

from collections.abc import Iterable, Mapping
from typing import Any

from conch.base.flags import (
    Given,
    Standing,
    independent_problems,
    read_arguments,
    read_environment,
    unknown_variables,
)
from conch.server.options.checks import check_options
from conch.server.options.server_options import FLAGS, STRICT_MODEL_CONFIG, ServerOptions


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
        _apply(given, values, notices, problems)
    options = ServerOptions(**values, notices=tuple(dict.fromkeys(notices)))
    problems += independent_problems(FLAGS, problems, check_options(options))
    if problems:
        raise OptionError(dict.fromkeys((*problems, *unknown)))
    return options


def _apply(given: Given, values: dict[str, Any], notices: list[str], problems: list[str]) -> None:
    """Put one value into `values`, or append to `notices` or `problems` why it is not used."""
    flag, name = given.flag, given.flag.attribute
    if flag is STRICT_MODEL_CONFIG:
        notices.append(f"{given.source} is deprecated; use --disable-auto-complete-config")
        values["disable_auto_complete_config"] = given.value or values.get("disable_auto_complete_config", False)
    elif flag.replaced_by:
        notices.append(f"{given.source} is deprecated; use --{flag.replaced_by}")
        name = flag.replaced_by.replace("-", "_")
        values[name] = (given.value, *values.get(name, ()))  # the last value applies, so the successor's has precedence
    elif flag.standing is Standing.REFUSED:
        if not flag.harmless(given.value):
            problems.append(f"{given.source} is not supported: {flag.reason}")
    elif flag.standing is Standing.IGNORED:
        notices.append(f"{given.source} has no effect: {flag.reason}")
    elif flag.repeatable:
        values[name] = (*values.get(name, ()), given.value)
    else:
        values[name] = given.value
