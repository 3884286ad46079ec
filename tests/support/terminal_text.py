"""Text as a terminal shows it."""

import re

_ERASED = re.compile(r"\x1b\[(\d+)D\x1b\[K")


def without_erased(text: str) -> str:
    """Return a text without the characters that it erases: the cursor moves to the left, and what follows it goes."""
    while erased := _ERASED.search(text):
        text = text[: erased.start() - int(erased[1])] + text[erased.end() :]
    return text
