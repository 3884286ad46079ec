"""Prompts of the language model benchmark: their length in tokens and their concurrency."""

import random
from dataclasses import dataclass

OUTPUT_TOKENS = 128
"""Tokens that each request asks for, and gets: nothing ends it before."""

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_WORD = 6


@dataclass(frozen=True)
class Work:
    """Prompts of `prompt_tokens` tokens, `concurrency` of them under way at any time."""

    prompt_tokens: int
    concurrency: int

    @property
    def name(self) -> str:
        """How tables call it."""
        return f"{self.prompt_tokens}-token prompts, {self.concurrency} at once"


@dataclass(frozen=True)
class Job:
    """One round of a work: `requests` prompts in a closed loop, the next one sent when one has its answer."""

    prompt_tokens: int
    concurrency: int
    requests: int
    seed: int

    def prompts(self) -> list[str]:
        """Return the prompts, the same for the same seed and never again for another.

        They are words of capital letters, which the model's tokenizer does not merge: a character is a token.
        """
        source = random.Random(f"{self.seed} {self.prompt_tokens} {self.concurrency}")
        return [_prompt(source, self.prompt_tokens) for _ in range(self.requests)]


def _prompt(source: random.Random, length: int) -> str:
    characters = source.choices(_LETTERS, k=length)
    characters[_WORD : length - 1 : _WORD + 1] = " " * len(range(_WORD, length - 1, _WORD + 1))
    return "".join(characters)
