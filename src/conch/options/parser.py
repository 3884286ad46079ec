"""From the command line and the environment to `ServerOptions`. A flag beats its variable, which beats the default."""

from collections.abc import Iterable, Mapping
from typing import Any

from conch.options.checks import problems_of
from conch.options.flags import Given, Standing, independent, misspelt_variables, read_arguments, read_environment
from conch.options.server_options import FLAGS, STRICT_MODEL_CONFIG, ServerOptions


class OptionError(Exception):
    """The command line or the environment is wrong. `problems` has one sentence for each mistake."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


def parse(argv: Iterable[str], environ: Mapping[str, str]) -> ServerOptions:
    """Make the options from the words after `conch serve` and the environment. Looks at files, changes nothing.

    Raises OptionError with every problem found.
    """
    problems: list[str] = []
    on_line = read_arguments(FLAGS, argv, problems)
    named = {given.flag for given in on_line}
    given = [one for one in read_environment(FLAGS, environ, problems) if one.flag not in named] + on_line
    misspelt = misspelt_variables(FLAGS, environ)
    notices = list(misspelt)
    values: dict[str, Any] = {}
    for one in given:
        _apply(one, values, notices, problems)
    options = ServerOptions(**values, notices=tuple(dict.fromkeys(notices)))
    problems += independent(FLAGS, problems, problems_of(options))
    if problems:
        raise OptionError(dict.fromkeys((*problems, *misspelt)))
    return options


def _apply(given: Given, values: dict[str, Any], notices: list[str], problems: list[str]) -> None:
    """Enter one value, or say why it has none."""
    flag, name = given.flag, given.flag.attribute
    if flag is STRICT_MODEL_CONFIG:
        notices.append(f"{given.source} is deprecated; use --disable-auto-complete-config")
        values["disable_auto_complete_config"] = given.value or values.get("disable_auto_complete_config", False)
    elif flag.replaced_by:
        notices.append(f"{given.source} is deprecated; use --{flag.replaced_by}")
        name = flag.replaced_by.replace("-", "_")
        values[name] = (given.value, *values.get(name, ()))  # what its successor says counts more
    elif flag.standing is Standing.REFUSED:
        if not flag.harmless(given.value):
            problems.append(f"{given.source} is not supported: {flag.reason}")
    elif flag.standing is Standing.IGNORED:
        notices.append(f"{given.source} has no effect: {flag.reason}")
    elif flag.repeatable:
        values[name] = (*values.get(name, ()), given.value)
    else:
        values[name] = given.value
