"""What commands tell their user beside their output."""

import sys

from conch.base.control_characters import printable_lines


def say(text: str) -> None:
    """Print text on stderr: names in it may be those of a server, or of files."""
    print(printable_lines(text), file=sys.stderr, flush=True)
