"""Read parameters of configurations and settings of backends, with errors that name them."""

from collections.abc import Mapping
from typing import TypeVar

from conch.base.errors import ConfigError

_Value = TypeVar("_Value")

BOOLEANS = {"1": True, "true": True, "0": False, "false": False}


def chosen(parameters: Mapping[str, str], name: str, choices: Mapping[str, _Value], default: _Value) -> _Value:
    """Return what a parameter's word, in any case, stands for. `choices` are in lower case. Raises ConfigError."""
    text = parameters.get(name)
    if text is None:
        return default
    word = text.strip().lower()
    if word not in choices:
        raise ConfigError(f"parameter '{name}' must be one of {', '.join(choices)}; got '{text}'")
    return choices[word]


def whole_number(text: str, name: str) -> int:
    """Return the number of a text. Raises ConfigError."""
    if not text.strip().isdecimal():
        raise ConfigError(f"'{name}' must be a whole number >= 0, got '{text}'")
    return int(text)
