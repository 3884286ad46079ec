"""`conch client`: ask a server that speaks Triton's protocol, this one or Triton itself."""

import json
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

from conch.cli.clients.api_key import KEY_HELP
from conch.cli.clients.prompt_template import DEFAULT_SYSTEM, TEMPLATES
from conch.cli.command_parser import CommandParser
from conch.errors import ConchError, Unavailable

_FAILURE, _INTERRUPTED = 1, 130


def client(arguments: Sequence[str]) -> int:
    """Run the sub-command; return the exit status: 0, 1 if anything failed, 2 if it was called wrongly."""
    given = _parser().parse_args(arguments)
    try:
        status: int = _client_prompts().ask_prompts(given, _sampling(given))
        return status
    except ConchError as error:
        print(f"conch client prompts: {error}", file=sys.stderr)
        return _FAILURE
    except KeyboardInterrupt:
        return _INTERRUPTED


def _client_prompts() -> ModuleType:
    """Import the command. Raises Unavailable if what it needs beside the server is not installed."""
    try:
        return import_module("conch.cli.clients.prompts")
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.startswith("conch"):
            raise
        raise Unavailable(f"the package '{missing.name}' is missing: pip install 'conch-server[client]'") from None


def _sampling(given: Namespace) -> dict[str, Any]:
    """Return the sampling parameters: what has a flag of its own goes before the JSON, which goes before defaults."""
    own = {"temperature": given.temperature, "max_tokens": given.max_tokens, "lora_name": given.lora_name}
    return {**_DEFAULTS, **given.sampling_parameters, **{key: value for key, value in own.items() if value is not None}}


def _parser() -> CommandParser:
    parser = CommandParser("conch client", description="Ask a server over Triton's gRPC protocol.")
    commands = parser.add_subparsers(title="commands", metavar="command", dest="command", required=True)
    prompts = commands.add_parser("prompts", help="send a file of prompts, write a file of answers", description=_WHAT)
    asked = prompts.add_argument_group("what is asked")
    asked.add_argument("-m", "--model-name", "--model", required=True, metavar="NAME", help="name of the model")
    asked.add_argument("--input-prompts", default="prompts.txt", metavar="FILE", help="a prompt in each line")
    asked.add_argument("--template", default="none", metavar="NAME|FILE", help=_TEMPLATE_HELP)
    asked.add_argument("--system", metavar="TEXT", help=f"what {{system}} stands for (default: {DEFAULT_SYSTEM})")
    asked.add_argument("--iterations", type=_positive, default=1, metavar="N", help="how often the file is sent")
    asked.add_argument("--offset", type=int, default=0, metavar="N", help="the number of the first request")

    answered = prompts.add_argument_group("how it is answered")
    answered.add_argument("--max-tokens", type=_positive, metavar="N", help="at most so many tokens (default: 256)")
    answered.add_argument("--temperature", type=float, metavar="T", help="0 takes the likeliest token (default: 0.1)")
    answered.add_argument(
        "--sampling-parameters",
        type=_json_object,
        default={},
        metavar="JSON",
        help="others by vLLM's names, as in '{\"top_k\": 20}' (default: a top_p of 0.95)",
    )
    answered.add_argument("-l", "--lora-name", metavar="NAME", help="LoRA adapter of the model")
    answered.add_argument(
        "-s",
        "--streaming-mode",
        action="store_true",
        help="have the text sent while it comes; tells when the first token came",
    )
    answered.add_argument(
        "--exclude-inputs-in-outputs", action="store_true", help="leave the prompts out of the results"
    )
    answered.add_argument("--results-file", default="results.txt", metavar="FILE", help="where the answers go")

    server = prompts.add_argument_group("the server")
    server.add_argument("-u", "--url", default="localhost:8001", help="host and gRPC port (default: %(default)s)")
    server.add_argument(
        "--concurrency", type=_positive, default=64, metavar="N", help="prompts at a time (default: %(default)s)"
    )
    server.add_argument("--api-key-file", metavar="FILE", help=KEY_HELP)
    server.add_argument("-t", "--stream-timeout", type=float, metavar="SECONDS", help="for each prompt")

    prompts.add_argument("-v", "--verbose", action="store_true", help="print the results, too")
    prompts.add_argument("--json", action="store_true", help="print one JSON document and nothing else")
    return parser


def _positive(text: str) -> int:
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise ArgumentTypeError(f"'{text}' is no number of 1 or more")


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ArgumentTypeError(f"no JSON: {error}") from None
    if not isinstance(value, dict):
        raise ArgumentTypeError(f"must be a JSON object, such as '{{\"top_k\": 20}}', got {text}")
    return value


_DEFAULTS: dict[str, Any] = {"temperature": 0.1, "top_p": 0.95, "max_tokens": 256}
_WHAT = (
    "Send each line of a file as a prompt to a language model, over gRPC streams and in the tensor form of Triton's "
    "vLLM backend, and write what comes into a file. Times are from when a prompt is sent to the last of its answer. "
    "The exit status is 1, and PASS is not printed, if any prompt has failed."
)
_TEMPLATE_HELP = (
    f"what is made of a line before it is sent: {', '.join(TEMPLATES)}, the last of which sends it as it is, or a file "
    "with {prompt} and, if wanted, {system} in it; what the model was trained with gets the best answers "
    "(default: %(default)s)"
)
