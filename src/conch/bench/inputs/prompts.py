"""Write prompts of random words."""

import numpy as np

from conch.bench.inputs.words import WORDS

DEFAULT_WORDS = 64


class PromptWriter:
    """Writes different texts, the same ones for the same random numbers."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def text(self, words: int = DEFAULT_WORDS) -> str:
        """Return a text of `words` words."""
        return " ".join(WORDS[number] for number in self._rng.integers(0, len(WORDS), words))
