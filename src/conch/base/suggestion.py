"""Suggestions for misspelt names."""

from collections.abc import Iterable

_CUTOFF = 0.6  # difflib's


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "", cutoff: float = _CUTOFF) -> str:
    """Return `; did you mean '…'?` with the most similar known name, to end a sentence, or `otherwise`."""
    from difflib import get_close_matches  # for errors only

    near = get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f"; did you mean '{near[0]}'?" if near else otherwise
