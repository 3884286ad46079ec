"""Types of options that are numbers."""

from argparse import ArgumentTypeError

_MAX_PORT = 65535


def count(text: str) -> int:
    """Return a whole number above 0. Raises ArgumentTypeError."""
    if text.isascii() and text.isdecimal() and int(text) > 0:
        return int(text)
    raise ArgumentTypeError(f"'{text}' is not a whole number above 0")


def port(text: str) -> int:
    """Return the number of a port. Raises ArgumentTypeError."""
    if text.isascii() and text.isdecimal() and 1 <= int(text) <= _MAX_PORT:
        return int(text)
    raise ArgumentTypeError(f"'{text}' is not a valid port")


def port_or_any(text: str) -> int:
    """Return the number of a port, or 0 for any free one. Raises ArgumentTypeError."""
    return 0 if text == "0" else port(text)
