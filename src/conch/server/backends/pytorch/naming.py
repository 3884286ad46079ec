"""Map configured names to the positions of a PyTorch model's arguments and results, by Triton's rules.

Either all names are those of the arguments of `forward`, or all have the form `<name>__<position>`, or their order in
the configuration is that of the arguments or results. For an AOTInductor package, which has no names,
`ARGS[<position>]` and `RESULT[<position>]` are positions, too; a single result is `RESULT`.
"""

import re
from collections.abc import Sequence

from conch.base.errors import ConfigError

_PLACE = re.compile(r"(?:(?:(?!__).)*__(?P<index>[0-9]+)|(?:ARGS|RESULT)\[(?P<element>[0-9]+)\]|RESULT)", re.ASCII)


def input_places(model: str, names: Sequence[str], arguments: Sequence[str] = ()) -> dict[str, int]:
    """Return the position of each input among the arguments of `forward`; `arguments` is empty if they are unknown.

    Raises ConfigError if two inputs have one position, or if there is no such argument.
    """
    if arguments and all(name in arguments for name in names):
        places = {name: arguments.index(name) for name in names}
    else:
        places = _places(names)
    _check_distinct(model, "input", places)
    for name, place in places.items():
        if arguments and place >= len(arguments):
            raise ConfigError(
                f"model '{model}': input '{name}' is argument {place} of forward, which has {len(arguments)}, counted "
                f"from 0: {', '.join(arguments)}"
            )
    return places


def output_places(model: str, names: Sequence[str]) -> dict[str, int]:
    """Return the position of each output among the results. Raises ConfigError if two have one position."""
    places = _places(names)
    _check_distinct(model, "output", places)
    return places


def _places(names: Sequence[str]) -> dict[str, int]:
    matches = [_PLACE.fullmatch(name) for name in names]
    if not all(matches):
        return {name: place for place, name in enumerate(names)}
    return {match[0]: int(match["index"] or match["element"] or 0) for match in matches if match is not None}


def _check_distinct(model: str, kind: str, places: dict[str, int]) -> None:
    seen: dict[int, str] = {}
    for name, place in places.items():
        other = seen.setdefault(place, name)
        if other != name:
            raise ConfigError(f"model '{model}': {kind}s '{other}' and '{name}' both stand for place {place}")
