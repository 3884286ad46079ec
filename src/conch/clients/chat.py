"""`conch chat`: chat with a language model in the terminal over the OpenAI API."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from conch.base.command_line.command_parser import CommandParser
from conch.base.command_line.flag_values import value_kind
from conch.base.command_line.flags import flag_field, settings_field, settings_of
from conch.base.command_line.option_types import duration
from conch.base.command_line.say import say
from conch.base.command_line.wait_for_model import DEFAULT_WAIT_S, WAIT_HELP, wait_for_model
from conch.base.control_characters import printable
from conch.base.errors import ConchError, InvalidRequest
from conch.base.http.credentials import KEY_HELP, VARIABLES, client_key
from conch.clients.chat_commands import EndOfChat, command_answer
from conch.clients.openai_client import OpenAIClient
from conch.clients.saved_chats import InputHistory
from conch.clients.terminal_chat import INTERRUPTED, AnswerSettings, TerminalChat

_FAILURE = 1
_QUOTES = '"""'  # around a message of several lines
_URL = "http://localhost:8000/v1"


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
        return INTERRUPTED


def talk(client: OpenAIClient, model: str, prompt: Sequence[str], settings: AnswerSettings) -> int:
    """Answer the prompt of the arguments or of a pipe, or converse on a terminal. Raises ConchError."""
    conversation = TerminalChat(client, model, settings)
    if prompt:
        return conversation.answer(" ".join(prompt))
    return _converse(conversation) if sys.stdin.isatty() else conversation.answer(sys.stdin.read().strip())


def _converse(conversation: TerminalChat) -> int:
    """Answer line by line until /bye or Ctrl-D."""
    import readline  # adds history and editing to input()

    history = InputHistory()
    history.start()
    readline.parse_and_bind("set enable-bracketed-paste on")  # lines that are pasted are one message
    model = printable(conversation.model)
    say(f"Chat with {model}. Ctrl-C ends the answer, Ctrl-D or /bye the conversation; /help lists more.")
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
            if text and conversation.keeps_history:
                history.add(text)
            if text.startswith("/"):
                say(command_answer(conversation, text))
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
