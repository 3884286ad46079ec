"""What a model thinks before it speaks: the text between <think> and </think>."""

from conch.llm.output import OutputParser, Part, Reasoning

_BEGIN, _END = "<think>", "</think>"


def thinks(template: str) -> bool:
    """Whether a model with this chat template may think aloud."""
    return _END in template


class ReasoningOutput:
    """Tells apart what is thought and what is said; what is said goes through another parser.

    `thinking` is whether the prompt has ended within the thoughts, as the templates of some models do. Thoughts that
    are not `shown` are left out.
    """

    def __init__(self, rest: OutputParser, *, thinking: bool, shown: bool = True) -> None:
        self._rest = rest
        self._shown = shown
        self._state = "thinking" if thinking else "before"
        self._held = ""

    def feed(self, text: str, last: bool) -> list[Part]:
        """Take more text."""
        if self._state == "said":
            return self._rest.feed(text, last)
        self._held += text
        if self._state == "between":
            return self._skip_lines(last)
        if self._state == "before":
            begun = self._held.lstrip()
            if _BEGIN.startswith(begun) and not last:
                return []
            if not begun.startswith(_BEGIN):
                return self._say(self._held, last)
            self._held = begun.removeprefix(_BEGIN)
            self._state = "thinking"
        thought, end, said = self._held.partition(_END)
        if end:
            self._state, self._held = "between", said
            return [*self._thought(thought), *self._skip_lines(last)]
        keep = 0 if last else _overlap(self._held)
        thought, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return [*self._thought(thought), *(self._rest.feed("", True) if last else [])]

    def _thought(self, text: str) -> list[Part]:
        return [Reasoning(text)] if text and self._shown else []

    def _skip_lines(self, last: bool) -> list[Part]:
        """Say what follows the thoughts, but for the empty lines that models put there."""
        said = self._held.lstrip("\n")
        return self._say(said, last) if said or last else []

    def _say(self, text: str, last: bool) -> list[Part]:
        self._state = "said"
        self._held = ""
        return self._rest.feed(text, last)


def _overlap(text: str) -> int:
    """Return how many characters at the end may be the beginning of the mark that ends the thoughts."""
    for size in range(min(len(text), len(_END) - 1), 0, -1):
        if text.endswith(_END[:size]):
            return size
    return 0
