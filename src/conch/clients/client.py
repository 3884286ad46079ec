"""`conch client`: send requests to Conch or Triton over Triton's gRPC protocol."""

import json
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

from conch.base.command_line.command_parser import CommandParser
from conch.base.command_line.option_types import count
from conch.base.errors import ConchError, Unavailable
from conch.base.http.credentials import KEY_HELP
from conch.clients.prompt_template import DEFAULT_SYSTEM, TEMPLATES

_FAILURE, _INTERRUPTED = 1, 130


def client(arguments: Sequence[str]) -> int:
    """Run the sub-command; return the exit status: 0, 1 after a failure, 2 for invalid arguments."""
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
    """Import the command. Raises Unavailable if its optional packages are not installed."""
    try:
        return import_module("conch.clients.prompts")
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.startswith("conch"):
            raise
        raise Unavailable(f"the package '{missing.name}' is missing: pip install 'conch-server[client]'") from None


def _sampling(given: Namespace) -> dict[str, Any]:
    """Return the sampling parameters, in order of precedence: flags, --sampling-parameters, defaults."""
    flags = {"temperature": given.temperature, "max_tokens": given.max_tokens, "lora_name": given.lora_name}
    flags = {key: value for key, value in flags.items() if value is not None}
    return {**_DEFAULTS, **given.sampling_parameters, **flags}


def _parser() -> CommandParser:
    parser = CommandParser("conch client", description="Send requests to a server over Triton's gRPC protocol.")
    commands = parser.add_subparsers(title="commands", metavar="command", dest="command", required=True)
    prompts = commands.add_parser(
        "prompts", help="send a file of prompts, write a file of answers", description=_DESCRIPTION
    )
    requests = prompts.add_argument_group("requests")
    requests.add_argument("-m", "--model-name", "--model", required=True, metavar="NAME", help="name of the model")
    requests.add_argument("--input-prompts", default="prompts.txt", metavar="FILE", help="file with a prompt per line")
    requests.add_argument("--template", default="none", metavar="NAME|FILE", help=_TEMPLATE_HELP)
    requests.add_argument("--system", metavar="TEXT", help=f"value of {{system}} (default: {DEFAULT_SYSTEM})")
    requests.add_argument("--iterations", type=count, default=1, metavar="N", help="how many times the file is sent")
    requests.add_argument("--offset", type=int, default=0, metavar="N", help="number of the first request")

    answers = prompts.add_argument_group("answers")
    answers.add_argument("--max-tokens", type=count, metavar="N", help="maximum number of tokens (default: 256)")
    answers.add_argument(
        "--temperature", type=float, metavar="T", help="sampling temperature; 0 is greedy (default: 0.1)"
    )
    answers.add_argument(
        "--sampling-parameters",
        type=_json_object,
        default={},
        metavar="JSON",
        help="other parameters by vLLM's names, such as '{\"top_k\": 20}' (default: a top_p of 0.95)",
    )
    answers.add_argument("-l", "--lora-name", metavar="NAME", help="LoRA adapter of the model")
    answers.add_argument(
        "-s", "--streaming-mode", action="store_true", help="stream the answers and report the time to the first token"
    )
    answers.add_argument(
        "--exclude-inputs-in-outputs", action="store_true", help="leave the prompts out of the results"
    )
    answers.add_argument("--results-file", default="results.txt", metavar="FILE", help="file for the answers")

    server = prompts.add_argument_group("the server")
    server.add_argument("-u", "--url", default="localhost:8001", help="host and gRPC port (default: %(default)s)")
    server.add_argument(
        "--concurrency", type=count, default=64, metavar="N", help="concurrent prompts (default: %(default)s)"
    )
    server.add_argument("--api-key-file", metavar="FILE", help=KEY_HELP)
    server.add_argument("-t", "--stream-timeout", type=float, metavar="SECONDS", help="timeout of each prompt")

    prompts.add_argument("-v", "--verbose", action="store_true", help="also print the results")
    prompts.add_argument("--json", action="store_true", help="print only one JSON document")
    return parser


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ArgumentTypeError(f"not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ArgumentTypeError(f"must be a JSON object, such as '{{\"top_k\": 20}}', got {text}")
    return value


_DEFAULTS: dict[str, Any] = {"temperature": 0.1, "top_p": 0.95, "max_tokens": 256}
_DESCRIPTION = (
    "Send each line of a file as a prompt to a language model, over gRPC streams with the tensors of Triton's vLLM "
    "backend, and write the answers to a file. Times are measured from sending a prompt to the end of its answer. The "
    "exit status is 1, and PASS is not printed, if any prompt fails."
)
_TEMPLATE_HELP = (
    f"template for each line: {', '.join(TEMPLATES)} (which sends the line unchanged), or a file that contains "
    "{prompt} and optionally {system}; use the model's own chat format for the best answers (default: %(default)s)"
)
