"""`conch chat`: chat with a language model in the terminal over the OpenAI API."""

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from conch.base.command_line.command_parser import CommandParser
from conch.base.command_line.flag_values import BOOLEAN, value_kind
from conch.base.command_line.flags import flag_field, settings_field, settings_of
from conch.base.command_line.option_types import duration
from conch.base.command_line.say import say
from conch.base.command_line.wait_for_model import DEFAULT_WAIT_S, WAIT_HELP, wait_for_model
from conch.base.control_characters import printable, printable_lines
from conch.base.errors import ConchError, InvalidRequest
from conch.base.http.credentials import KEY_HELP, VARIABLES, client_key
from conch.base.suggestion import did_you_mean
from conch.clients.openai_client import Completion, ContextExceeded, OpenAIClient

_FAILURE, _INTERRUPTED = 1, 130
_TURN = 2  # messages: the user's and the answer
_QUOTES = '"""'  # around a message of several lines
_URL = "http://localhost:8000/v1"


@dataclass(frozen=True, slots=True)
class AnswerSettings:
    """The flags for answers, of `conch chat` and `conch run`."""

    system: str = flag_field("", "", "system prompt", value_kind("TEXT"))
    temperature: float | None = flag_field(None, "", "sampling temperature; 0 is greedy", value_kind("T", float))
    max_tokens: int | None = flag_field(None, "", "maximum number of tokens in an answer", value_kind("N", int))
    seed: int | None = flag_field(None, "", "seed of the sampling", value_kind("N", int))
    json: bool = flag_field(False, "", "print each answer as one line of JSON", BOOLEAN, bare=True)


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """The flags of `conch chat`."""

    answers: AnswerSettings = settings_field(AnswerSettings)
    url: str = flag_field(_URL, "", f"URL of the API (default: {_URL})", value_kind("URL"))
    api_key_file: str | None = flag_field(None, "", KEY_HELP, value_kind("FILE"))
    model: str = flag_field("", "", "name of the model (default: the only language model)", value_kind("NAME"))
    wait: float = flag_field(DEFAULT_WAIT_S, "", WAIT_HELP, value_kind("TIME", duration))


def chat(arguments: Sequence[str]) -> int:
    """Run a conversation, or answer one prompt from the arguments or a pipe; return the exit status."""
    given = _parser().parse_args(arguments)
    settings = settings_of(ChatSettings, given)
    try:
        client = OpenAIClient(settings.url, client_key(settings.api_key_file))
        model = wait_for_model(partial(chosen_model, client, settings.model), "conch chat", settings.wait)
        return talk(client, model, given.prompt, settings.answers)
    except ConchError as error:
        say(f"conch chat: {error}")
        return _FAILURE
    except KeyboardInterrupt:
        return _INTERRUPTED


def talk(client: OpenAIClient, model: str, prompt: Sequence[str], settings: AnswerSettings) -> int:
    """Answer the prompt of the arguments or of a pipe, or converse on a terminal. Raises ConchError."""
    conversation = TerminalChat(client, model, settings)
    if prompt:
        return conversation.answer(" ".join(prompt))
    return _converse(conversation) if sys.stdin.isatty() else conversation.answer(sys.stdin.read().strip())


class TerminalChat:
    """A model, the settings of its answers, and the messages so far."""

    def __init__(self, client: OpenAIClient, model: str, settings: AnswerSettings) -> None:
        self.model = model
        self.system = settings.system
        options = {"temperature": settings.temperature, "max_tokens": settings.max_tokens, "seed": settings.seed}
        self.settings: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        self.context_used = 0  # tokens of the last prompt and its answer
        self.context_limit = client.context_length(model)
        self._client = client
        self._as_json = settings.json
        self._messages: list[dict[str, str]] = []

    @property
    def turns(self) -> int:
        """How many messages the model gets, without the system prompt."""
        return len(self._messages)

    def clear(self) -> None:
        """Forget the messages; the settings stay."""
        self._messages.clear()
        self.context_used = 0

    def answer(self, text: str) -> int:
        """Send a user message, print the streamed answer, then its speed; return the exit status.

        Ctrl-C ends the answer; its beginning stays in the conversation. The oldest messages are forgotten if the
        context has no room for all. Raises ConchError.
        """
        if not text:
            raise InvalidRequest("the prompt is empty")
        self._messages.append({"role": "user", "content": text})
        answer, status, forgotten = Completion(), 0, 0
        try:
            while True:
                try:
                    self._stream(self._messages[forgotten:], answer)
                    break
                except ContextExceeded:
                    forgotten += _TURN
                    if forgotten >= len(self._messages):
                        raise
        except KeyboardInterrupt:
            answer.finish_reason, status = "interrupted", _INTERRUPTED
        except ConchError:
            self._messages.pop()
            raise
        del self._messages[:forgotten]
        self._messages.append({"role": "assistant", "content": answer.text})
        self.context_used = answer.prompt_tokens + answer.completion_tokens or self.context_used
        if self._as_json:
            print(json.dumps({"model": self.model, **asdict(answer)}), flush=True)
        else:
            print(flush=True)
            print(self._speed(answer, forgotten), file=sys.stderr, flush=True)
        return status

    def _stream(self, messages: Sequence[dict[str, str]], answer: Completion) -> None:
        """Request an answer and print its pieces. Raises ConchError."""
        shown = printable_lines if sys.stdout.isatty() else str  # a program gets what the model has written
        system = [{"role": "system", "content": self.system}] if self.system else []
        with closing(self._client.chat(self.model, [*system, *messages], self.settings, answer)) as pieces:
            for piece in pieces:
                if not self._as_json:
                    print(shown(piece), end="", flush=True)

    def _speed(self, answer: Completion, forgotten: int) -> str:
        if answer.finish_reason == "interrupted":
            return "[interrupted]"
        parts = [f"{answer.completion_tokens} token{'s' if answer.completion_tokens != 1 else ''}"]
        if answer.first_s is not None:
            parts.append(f"first token after {answer.first_s * 1000:.0f} ms")
        if self.context_limit and self.context_used:
            parts.append(f"context {self.context_used}/{self.context_limit}")
        if answer.tokens_per_second is not None:
            parts.append(f"{answer.tokens_per_second:.0f} tokens/s")
        if answer.finish_reason == "length":
            parts.append("token limit reached")
        if forgotten:
            parts.append(f"the oldest {forgotten} messages no longer fit and are forgotten")
        return f"[{', '.join(parts)}]"


def _converse(conversation: TerminalChat) -> int:
    """Answer line by line until /bye or Ctrl-D."""
    import readline  # adds history and editing to input()

    readline.parse_and_bind("set enable-bracketed-paste on")  # lines that are pasted are one message
    model = printable(conversation.model)
    print(
        f"Chat with {model}. Ctrl-C ends the answer, Ctrl-D or /bye the conversation; /help lists more.",
        file=sys.stderr,
    )
    while True:
        try:
            text = _message()
        except EOFError:
            print(file=sys.stderr)
            return 0
        except KeyboardInterrupt:  # perhaps meant for an answer that has just ended
            print("\nCtrl-D or /bye ends the conversation", file=sys.stderr)
            continue
        try:
            if text.startswith("/"):
                print(command_answer(conversation, text), file=sys.stderr)
            elif text:
                conversation.answer(text)
        except EndOfChat:
            return 0
        except ConchError as error:
            say(str(error))


def _message() -> str:
    """Read a line, or all lines between triple quotes. Raises EOFError."""
    text = input("> ").strip()
    if not text.startswith(_QUOTES):
        return text
    lines = [text.removeprefix(_QUOTES)]
    while not lines[-1].rstrip().endswith(_QUOTES):
        lines.append(input("... "))
    return "\n".join(lines).rstrip().removesuffix(_QUOTES).strip()


def chosen_model(client: OpenAIClient, name: str) -> str:
    """Return the model of this name, or the only one. Raises ConchError, ModelLoading while it is loading."""
    if name:
        client.check_loaded(name)
        return name
    models = client.models()
    if len(models) == 1:
        return models[0]
    if not models:
        raise InvalidRequest("the server has no language model")
    raise InvalidRequest(f"--model is required: the server has {', '.join(models)}")


def _parser() -> CommandParser:
    parser = CommandParser(
        "conch chat",
        description="Chat with a language model over the OpenAI API. A prompt from the arguments or a pipe gets a "
        "single answer.",
        epilog=f"The API key is read from {' or '.join(VARIABLES)}.",
    )
    parser.add_argument("prompt", nargs="*", help="prompt; without it, a conversation starts")
    parser.add_flags(ChatSettings)
    return parser


_HELP = '''\
/set temperature 0.2     also top_p, top_k, max_tokens, stop, seed
/set system TEXT         system prompt; without TEXT, none
/show                    model, settings, context used
/clear                   forget the messages
/bye                     end the conversation
"""                      begins and ends a message of several lines'''


def _stop(text: str) -> str:
    if not text:
        raise ValueError
    return text


# Setting → how its value is read.
_SETTINGS: dict[str, Callable[[str], Any]] = {
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "max_tokens": int,
    "stop": _stop,
    "seed": int,
}
_OTHER_NAMES = {"num_predict": "max_tokens"}  # Ollama's
_COMMANDS = ("/set", "/show", "/clear", "/help", "/bye")


class EndOfChat(Exception):
    """The user ends the conversation."""


def command_answer(conversation: TerminalChat, text: str) -> str:
    """Execute a command; return what to print. Raises InvalidRequest for an invalid one, EndOfChat."""
    name, _, rest = text.partition(" ")
    if name in ("/bye", "/exit", "/quit"):
        raise EndOfChat
    if name in ("/help", "/?"):
        return _HELP
    if name == "/clear":
        conversation.clear()
        return "the conversation is empty"
    if name == "/show":
        return _shown(conversation)
    if name == "/set":
        return _set(conversation, rest.strip().removeprefix("parameter ").strip())
    raise InvalidRequest(f"unknown command '{name}'{did_you_mean(name, _COMMANDS)}; /help lists the commands")


def _set(conversation: TerminalChat, assignment: str) -> str:
    name, _, text = assignment.partition(" ")
    name, text = _OTHER_NAMES.get(name, name), text.strip()
    if name == "system":
        conversation.system = text.strip('"')
        return "the system prompt is set" if text else "the system prompt is removed"
    if name not in _SETTINGS:
        raise InvalidRequest(f"/set takes {', '.join(_SETTINGS)} or system, and a value, such as /set temperature 0.2")
    try:
        conversation.settings[name] = _SETTINGS[name](text)
    except ValueError:
        kind = {"stop": "a text", "temperature": "a number", "top_p": "a number"}.get(name, "an integer")
        raise InvalidRequest(f"'{text}' is not a valid {name}: expected {kind}") from None
    return f"{name} is {conversation.settings[name]}"


def _shown(conversation: TerminalChat) -> str:
    limit = f" of {conversation.context_limit}" if conversation.context_limit else ""
    lines = [
        f"model        {conversation.model}",
        f"context      {conversation.context_used}{limit} tokens, {conversation.turns} messages",
        *(f"{name:<12} {value}" for name, value in conversation.settings.items()),
    ]
    if conversation.system:
        lines.append(f"system       {conversation.system}")
    return "\n".join(lines)
