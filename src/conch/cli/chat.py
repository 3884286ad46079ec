"""`conch chat`: talk with a model in the terminal, over the OpenAI API."""

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Any

from conch.cli.clients.api_key import KEY_HELP, VARIABLES, client_key
from conch.cli.clients.openai_client import Completion, OpenAIClient
from conch.cli.command_parser import CommandParser
from conch.errors import ConchError, InvalidRequest

_FAILURE, _INTERRUPTED = 1, 130


def chat(arguments: Sequence[str]) -> int:
    """Talk until the input ends; of a pipe or file, answer its whole text once. Return the exit status."""
    given = _parser().parse_args(arguments)
    try:
        client = OpenAIClient(given.url, client_key(given.api_key_file))
        talk = _Talk(client, given.model or _only_model(client), given)
        if given.prompt:
            return talk.answer(" ".join(given.prompt))
        return _converse(talk) if sys.stdin.isatty() else talk.answer(sys.stdin.read().strip())
    except ConchError as error:
        print(f"conch chat: {error}", file=sys.stderr)
        return _FAILURE
    except KeyboardInterrupt:
        return _INTERRUPTED


class _Talk:
    """A model and what has been said so far."""

    def __init__(self, client: OpenAIClient, model: str, given: Namespace) -> None:
        self.model = model
        self._client = client
        self._as_json = given.json
        self._messages = [{"role": "system", "content": given.system}] if given.system else []
        wanted = {"temperature": given.temperature, "max_tokens": given.max_tokens, "seed": given.seed}
        self._settings: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}

    def answer(self, text: str) -> int:
        """Send what was said, print the answer as it comes, then its speed; return the exit status.

        Ctrl-C ends the answer: what has come of it stays said. Raises ConchError.
        """
        if not text:
            raise InvalidRequest("the prompt is empty")
        self._messages.append({"role": "user", "content": text})
        answer = Completion()
        status = 0
        try:
            with closing(self._client.chat(self.model, self._messages, self._settings, answer)) as pieces:
                for piece in pieces:
                    if not self._as_json:
                        print(piece, end="", flush=True)
        except KeyboardInterrupt:
            answer.finish_reason, status = "interrupted", _INTERRUPTED
        except ConchError:
            self._messages.pop()
            raise
        self._messages.append({"role": "assistant", "content": answer.text})
        if self._as_json:
            print(json.dumps({"model": self.model, **asdict(answer)}), flush=True)
        else:
            print(flush=True)
            print(_speed(answer), file=sys.stderr, flush=True)
        return status


def _converse(talk: _Talk) -> int:
    """Answer line by line until Ctrl-D, or Ctrl-C at the prompt."""
    import readline  # noqa: F401 - gives input() its history and editing

    print(f"You talk with {talk.model}. Ctrl-C ends an answer, Ctrl-D the talk.", file=sys.stderr)
    while True:
        try:
            text = input("> ").strip()
        except EOFError:
            print(file=sys.stderr)
            return 0
        if text:
            try:
                talk.answer(text)
            except ConchError as error:
                print(f"conch chat: {error}", file=sys.stderr)


def _speed(answer: Completion) -> str:
    if answer.finish_reason == "interrupted":
        return "[interrupted]"
    told = [f"{answer.completion_tokens} token{'s' if answer.completion_tokens != 1 else ''}"]
    if answer.first_s is not None:
        told.append(f"first token after {answer.first_s * 1000:.0f} ms")
    if answer.tokens_per_second is not None:
        told.append(f"{answer.tokens_per_second:.0f} tokens/s")
    if answer.finish_reason == "length":
        told.append("cut at the limit of tokens")
    return f"[{', '.join(told)}]"


def _only_model(client: OpenAIClient) -> str:
    models = client.models()
    if len(models) == 1:
        return models[0]
    raise InvalidRequest(f"--model must say which: the server has {', '.join(models) or 'no model that generates'}")


def _parser() -> CommandParser:
    parser = CommandParser(
        "conch chat",
        description="Talk with a model over the OpenAI API. A prompt from a pipe, or as arguments, is answered once.",
        epilog=f"An API key is read from {' or '.join(VARIABLES)}.",
    )
    parser.add_argument("prompt", nargs="*", help="what to say; without it a talk begins")
    parser.add_argument("--url", default="http://localhost:8000/v1", help="of the API (default: %(default)s)")
    parser.add_argument("--api-key-file", metavar="FILE", help=KEY_HELP)
    parser.add_argument("--model", default="", help="name of the model; not needed if one generates")
    parser.add_argument("--system", default="", metavar="TEXT", help="system prompt")
    parser.add_argument("--temperature", type=float, metavar="T", help="0 takes the likeliest token each time")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="at most this many tokens in an answer")
    parser.add_argument("--seed", type=int, metavar="N", help="of the random choice")
    parser.add_argument("--json", action="store_true", help="print each answer as one line of JSON")
    return parser
