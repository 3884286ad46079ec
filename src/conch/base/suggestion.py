"""Suggestions for misspelt names."""

from collections.abc import Iterable

_CUTOFF = 0.6  # difflib's


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "", cutoff: float = _CUTOFF) -> str:
    """Return `; did you mean '…'?` with the most similar known name, to end a sentence, or `otherwise`."""
    near = closest(name, known, cutoff)
    return f"; did you mean '{near}'?" if near else otherwise


def closest(name: str, known: Iterable[str], cutoff: float = _CUTOFF) -> str | None:
    """Return the most similar known name, None if the similarity of all is below `cutoff`, from 0 to 1."""
    from difflib import get_close_matches  # for errors only

    return next(iter(get_close_matches(name, list(known), n=1, cutoff=cutoff)), None)
