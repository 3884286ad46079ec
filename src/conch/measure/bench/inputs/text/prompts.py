"""Write prompts of random words with a given number of tokens."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from conch.measure.bench.input_settings import Amount, InputError
from conch.measure.bench.inputs.text.token_counter import TokenCounter
from conch.measure.bench.inputs.text.unique_prompts import UniqueWords
from conch.measure.bench.inputs.text.vocabulary import Vocabulary, text_of_tokens

DEFAULT_WORDS = 64
_PREFIX_SEED, _BLOCK_SEED = 1, 2
# Words that are counted one by one: enough to spell numbers.
_MAX_COUNTED = 32


class PromptWriter:
    """Writes different prompts, the same ones for the same seed.

    With a vocabulary that is not exact and a counter, prompts are cut to the exact number of tokens one by one.
    `unique` is for prompts that never repeat: they are marked where it puts words, right after what they share.
    """

    def __init__(
        self, vocabulary: Vocabulary, seed: int, counter: TokenCounter | None = None, *, unique: bool = False
    ) -> None:
        """Send requests to the counter if `unique` words have to be counted one by one."""
        self.vocabulary = vocabulary
        self._seed = seed
        self._rng = np.random.default_rng(seed)
        self._cutter = None if vocabulary.exact else counter
        self.unique = UniqueWords(vocabulary.words) if unique else None
        self.fewest_distinct: int | None = None
        """How many different prompts the shortest one of those written so far stands for."""
        if self.unique is not None and self._cutter is not None:
            self.unique.restrict(_alike(self._cutter, vocabulary.first[0], self.unique.words[:_MAX_COUNTED]))

    @property
    def exact(self) -> bool:
        """Whether prompts have exactly the number of tokens that was asked for."""
        return self.vocabulary.exact or self._cutter is not None

    def amount(self, amount: Amount) -> int:
        """Return a random number in the range of an amount."""
        if not amount.spread:
            return amount.mean
        return int(self._rng.integers(amount.mean - amount.spread, amount.mean + amount.spread, endpoint=True))

    def prompt(self, tokens: int, prefix: Sequence[str] = (), *, first: bool = True, cut: bool = True) -> str:
        """Return a prompt of `tokens` tokens that starts with the words of a prefix.

        The first prompt of a conversation counts with what the chat template adds. `cut` allows to cut a text to the
        number of tokens, which sends requests. Raises InputError if the prefix and the template alone have more.
        """
        overhead = self.vocabulary.overhead if first else 0
        count = round((tokens - overhead) / self.vocabulary.tokens_per_word)
        if count < 1 or count < len(prefix):
            what = "the shared prefix and the chat template" if prefix else "the chat template"
            raise InputError(f"--prompt-tokens {tokens}: {what} alone have {overhead + len(prefix)} tokens")
        if self._cutter is not None and first and cut:
            shared = (*prefix, *self.words(0 if prefix else 1, self._rng))
            spelled = (self.unique.spelled(self.unique.size),) if self.unique is not None else ()
            longer = " ".join((*shared, *spelled, *self.words(2 * count + 16, self._rng, start=False)))
            text = text_of_tokens(self._cutter, longer, tokens)
            return self._marked(text, len(" ".join(shared)) + 1)
        words = self.words(count - len(prefix), self._rng, start=not prefix)
        if first and self.unique is not None:
            shared = (*prefix, *words[: 0 if prefix else 1])
            size = min(self.unique.size, count - len(shared))
            self._note_distinct(size)
            marks = [self.unique.mark(size)] if size else []
            return " ".join((*shared, *marks, *words[: count - len(shared) - size]))
        return " ".join((*prefix, *words))

    def _marked(self, text: str, start: int) -> str:
        """Mark the unique words of a text that was cut."""
        if self.unique is None:
            return text
        size = self.unique.fitting(len(text) - start)
        self._note_distinct(size)
        if not size:
            return text
        mark = self.unique.mark(size)
        return text[:start] + mark + text[start + len(mark) :]

    def _note_distinct(self, size: int) -> None:
        assert self.unique is not None
        found = self.unique.distinct(size)
        self.fewest_distinct = found if self.fewest_distinct is None else min(self.fewest_distinct, found)

    def prefix(self, number: int, tokens: int) -> list[str]:
        """Return the words of a shared prefix."""
        rng = np.random.default_rng((self._seed, _PREFIX_SEED, number))
        return self.words(round(tokens / self.vocabulary.tokens_per_word), rng)

    def blocks(self, hash_ids: Sequence[int], block_tokens: int, tokens: int) -> str:
        """Return a prompt of blocks: those with the same id have the same words, so that servers can share them.

        The last block is cut to the number of tokens; what the ids do not cover is random.
        """
        wanted = max(1, round((tokens - self.vocabulary.overhead) / self.vocabulary.tokens_per_word))
        words: list[str] = []
        for number in hash_ids:
            if len(words) >= wanted:
                break
            rng = np.random.default_rng((self._seed, _BLOCK_SEED, number))
            words += self.words(round(block_tokens / self.vocabulary.tokens_per_word), rng, start=not words)
        words += self.words(max(0, wanted - len(words)), self._rng, start=not words)
        return " ".join(words[:wanted])

    def words(self, count: int, rng: np.random.Generator, *, start: bool = True) -> list[str]:
        """Return random words; the first one, at the start of a prompt, is one that may stand there."""
        known = self.vocabulary
        found = [known.words[number] for number in rng.integers(0, len(known.words), count)]
        if start and found:
            found[0] = known.first[int(rng.integers(0, len(known.first)))]
        return found


def _alike(counter: TokenCounter, before: str, words: Sequence[str]) -> list[str]:
    """Return those words that have the same number of tokens after another one, as most of them have."""
    counted = [counter.count(f"{before} {word} {before}") for word in words]
    usual = Counter(counted).most_common(1)[0][0]
    return [word for word, tokens in zip(words, counted, strict=True) if tokens == usual]
