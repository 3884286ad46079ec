"""Templates that turn a line of text into a model's prompt."""

import re
from dataclasses import dataclass
from pathlib import Path

from conch.base.errors import InvalidRequest

# Chat formats: of Llama 2, and of Qwen and many others.
TEMPLATES = {
    "llama2": "<s>[INST]<<SYS>>\n{system}\n<</SYS>>\n\n{prompt}\n[/INST]",
    "chatml": ("<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"),
    "none": "{prompt}",
}
DEFAULT_SYSTEM = "Keep short answers of no more than 100 sentences."

_PLACES = re.compile(r"\{(prompt|system)\}")


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """A text that contains `{prompt}` and optionally `{system}`."""

    text: str
    system: str

    def __call__(self, prompt: str) -> str:
        """Return the text with both substituted."""
        # In one pass, so that placeholders in the prompt are not substituted.
        return _PLACES.sub(lambda place: prompt if place[1] == "prompt" else self.system, self.text)


def read_template(name: str, system: str | None) -> PromptTemplate:
    """Return the template of this name or file. Raises InvalidRequest if it does not exist or has no placeholder."""
    text = TEMPLATES.get(name)
    if text is None:
        text = read_text(name, f"--template: '{name}' is not one of {', '.join(TEMPLATES)}, and as a file it")
    if "{prompt}" not in text:
        raise InvalidRequest(f"--template: '{name}' has no {{prompt}} in it")
    if system is not None and "{system}" not in text:
        raise InvalidRequest(f"--system: the template '{name}' has no {{system}} in it")
    return PromptTemplate(text, DEFAULT_SYSTEM if system is None else system)


def read_text(path: str, what: str) -> str:
    """Return a file's text. Raises InvalidRequest, whose message begins with `what`."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InvalidRequest(f"{what} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{what} is not UTF-8 text: {error.reason} at byte {error.start}") from None
