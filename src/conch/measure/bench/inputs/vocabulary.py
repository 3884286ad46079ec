"""Words from which prompts of an exact number of tokens are composed."""

from dataclasses import dataclass

from conch.measure.bench.input_settings import InputError
from conch.measure.bench.inputs.token_counter import TokenCounter

_TEXT = """
about above across after again against almost alone along already also although always among animal another answer
around because become before begin behind below between body book both bring brother build business call can care
carry change child city clear close cold come common could country course cover cut dark day dear deep different
door down draw drive during each early earth east eat end enough even evening ever every eye face fact family far
father feel field fight figure fill find fire first fish five floor fly follow food foot force form four free friend
from front full game garden general give glass good government great green ground group grow half hand happy hard
have head heart heat heavy help here high hold home horse hot hour house how hundred idea important into island
keep kind king know land language large last late laugh lead learn leave left letter life light like line list
listen little live long look lose love low machine make man many mark matter mean measure meet middle might mile
mind minute money moon more morning most mother mountain move much music must name near need never new next night
north note nothing notice now number object ocean off offer office often old once one only open order other our out
over own page paper part pass past pay people perhaps person picture piece place plain plan plant play point poor
power present press problem produce public put question quick quiet rain reach read ready real reason record red
remember rest result return rich right river road rock room round rule run same school sea second see seem send
sentence serve set seven several shape ship short should show side simple since sing six size sleep slow small snow
some song soon sound south space speak special stand star start state stay step still stone stop story street strong
study such summer sun sure surface table take talk teach tell ten test than that their them then there these they
thing think this those though thought three through time together too top touch town trade train travel tree true
try turn two under unit until use usual valley very voice wait walk wall want war warm watch water way week weight
well west what wheel when where which while white who whole why wide will wind winter with without woman wonder
wood word work world would write year yes young
"""
WORDS = tuple(_TEXT.split())
# Words are tried together; groups in which one has several tokens are divided.
_GROUP = 45
_MAX_COUNTS = 160
# With fewer words, prompts would be too much alike.
MIN_WORDS = 16
_ENOUGH_WORDS = 120
_EXAMPLE_WORDS = 40


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Words of which each has `tokens_per_word` tokens, a request has `overhead` more.

    `exact`: every word after another one has one token, and each of `first` has one at the start of a prompt.
    """

    words: tuple[str, ...]
    first: tuple[str, ...]
    overhead: int
    tokens_per_word: float
    exact: bool


def assumed_vocabulary() -> Vocabulary:
    """Return all words, each taken as one token."""
    return Vocabulary(WORDS, WORDS, 0, 1.0, exact=False)


def measured_vocabulary(counter: TokenCounter, context_length: int | None) -> Vocabulary:
    """Return the words that have one token each, or all words and their mean number of tokens if few have.

    Sends up to 160 requests to the counter, about four with the usual tokenizers. Raises InputError.
    """
    first = WORDS[0]
    single = counter.count(first)
    # A first word of several tokens is found by a second one, which differs by its own tokens only.
    overhead = single - 1
    search = _Search(counter, first, single)
    group = _GROUP if context_length is None else max(1, min(_GROUP, context_length // 2 - single))
    words: list[str] = []
    for start in range(1, len(WORDS), group):
        words += search.single_tokens(WORDS[start : start + group])
        if len(words) >= _ENOUGH_WORDS:
            break
    if len(words) >= MIN_WORDS:
        return Vocabulary(tuple(words), (first,), overhead, 1.0, exact=True)
    sample = WORDS[: max(2, min(_EXAMPLE_WORDS, group))]
    counted = counter.count(" ".join(sample))
    per_word = max(0.1, (counted - single) / (len(sample) - 1))
    return Vocabulary(WORDS, (first,), max(0, round(single - per_word)), per_word, exact=False)


class _Search:
    """Finds words of one token each, after `before`, which alone has `before_tokens` with the overhead."""

    def __init__(self, counter: TokenCounter, before: str, before_tokens: int) -> None:
        self._counter = counter
        self._before = before
        self._before_tokens = before_tokens
        self._counts = 0

    def single_tokens(self, words: tuple[str, ...]) -> list[str]:
        """Return those of the words that have one token each; none once too many requests were sent."""
        if not words or self._counts >= _MAX_COUNTS:
            return []
        self._counts += 1
        tokens = self._counter.count(" ".join((self._before, *words))) - self._before_tokens
        if tokens == len(words):
            return list(words)
        if len(words) == 1 or tokens >= 2 * len(words):  # hardly one of them is a token
            return []
        middle = len(words) // 2
        return self.single_tokens(words[:middle]) + self.single_tokens(words[middle:])


def text_of_tokens(counter: TokenCounter, text: str, tokens: int) -> str:
    """Return the start of a text that has `tokens` tokens, by binary search over its characters.

    Raises InputError if the text is too short or if no start has this number.
    """
    low, high = 1, len(text)
    while low < high:
        middle = (low + high) // 2
        if counter.count(text[:middle]) < tokens:
            low = middle + 1
        else:
            high = middle
    for end in (low, low - 1, low + 1):
        if 0 < end <= len(text) and counter.count(text[:end]) == tokens:
            return text[:end]
    raise InputError(f"no prompt of exactly {tokens} tokens was found with {counter.source}")
