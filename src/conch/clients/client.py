"""`conch client`: send requests to Conch or Triton over Triton's gRPC protocol."""

import json
import re
from argparse import ArgumentTypeError
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from conch.base.command_line.command_parser import CommandParser
from conch.base.command_line.flag_values import BOOLEAN, value_kind
from conch.base.command_line.flags import flag_field, settings_of
from conch.base.command_line.option_types import count
from conch.base.command_line.say import say
from conch.base.errors import ConchError, InvalidRequest, Unavailable
from conch.base.extras import install_command
from conch.base.http.credentials import KEY_HELP

_FAILURE, _INTERRUPTED = 1, 130
_DEFAULTS: dict[str, Any] = {"temperature": 0.1, "top_p": 0.95, "max_tokens": 256}
_DESCRIPTION = (
    "Send each line of a file as a prompt to a language model, over gRPC streams with the tensors of Triton's vLLM "
    "backend, and write the answers to a file. Times are measured from sending a prompt to the end of its answer. The "
    "exit status is 1, and PASS is not printed, if any prompt fails."
)
# Chat formats: of Llama 2, and of Qwen and many others.
TEMPLATES = {
    "llama2": "<s>[INST]<<SYS>>\n{system}\n<</SYS>>\n\n{prompt}\n[/INST]",
    "chatml": ("<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"),
    "none": "{prompt}",
}
DEFAULT_SYSTEM = "Keep short answers of no more than 100 sentences."
_TEMPLATE_HELP = (
    f"template for each line: {', '.join(TEMPLATES)} (which sends the line unchanged), or a file that contains "
    "{prompt} and optionally {system}; use the model's own chat format for the best answers (default: none)"
)
_PLACES = re.compile(r"\{(prompt|system)\}")
_REQUESTS, _ANSWERS, _SERVER = "requests", "answers", "the server"
_FILE = value_kind("FILE")


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ArgumentTypeError(f"not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ArgumentTypeError(f"must be a JSON object, such as '{{\"top_k\": 20}}', got {text}")
    return value


@dataclass(frozen=True, slots=True)
class PromptSettings:
    """The flags of `conch client prompts`."""

    model_name: str = flag_field(MISSING, _REQUESTS, "name of the model", value_kind("NAME"), aliases=("m", "model"))
    input_prompts: str = flag_field("prompts.txt", _REQUESTS, "file with a prompt per line", _FILE)
    template: str = flag_field("none", _REQUESTS, _TEMPLATE_HELP, value_kind("NAME|FILE"))
    system: str | None = flag_field(
        None, _REQUESTS, f"value of {{system}} (default: {DEFAULT_SYSTEM})", value_kind("TEXT")
    )
    iterations: int = flag_field(1, _REQUESTS, "how many times the file is sent", value_kind("N", count))
    offset: int = flag_field(0, _REQUESTS, "number of the first request", value_kind("N", int))
    max_tokens: int | None = flag_field(
        None, _ANSWERS, "maximum number of tokens (default: 256)", value_kind("N", count)
    )
    temperature: float | None = flag_field(
        None, _ANSWERS, "sampling temperature; 0 is greedy (default: 0.1)", value_kind("T", float)
    )
    sampling_parameters: Mapping[str, Any] = flag_field(
        {},
        _ANSWERS,
        "other parameters by vLLM's names, such as '{\"top_k\": 20}' (default: a top_p of 0.95)",
        value_kind("JSON", _json_object),
    )
    lora_name: str | None = flag_field(None, _ANSWERS, "LoRA adapter of the model", value_kind("NAME"), aliases=("l",))
    streaming_mode: bool = flag_field(
        False,
        _ANSWERS,
        "stream the answers and report the time to the first token",
        BOOLEAN,
        bare=True,
        aliases=("s",),
    )
    exclude_inputs_in_outputs: bool = flag_field(
        False, _ANSWERS, "leave the prompts out of the results", BOOLEAN, bare=True
    )
    results_file: str = flag_field("results.txt", _ANSWERS, "file for the answers", _FILE)
    url: str = flag_field(
        "localhost:8001",
        _SERVER,
        "host and gRPC port (default: localhost:8001)",
        value_kind("HOST:PORT"),
        aliases=("u",),
    )
    concurrency: int = flag_field(64, _SERVER, "concurrent prompts (default: 64)", value_kind("N", count))
    api_key_file: str | None = flag_field(None, _SERVER, KEY_HELP, _FILE)
    stream_timeout: float | None = flag_field(
        None, _SERVER, "timeout of each prompt", value_kind("SECONDS", float), aliases=("t",)
    )
    verbose: bool = flag_field(False, "", "also print the results", BOOLEAN, bare=True, aliases=("v",))
    json: bool = flag_field(False, "", "print only one JSON document", BOOLEAN, bare=True)


def client(arguments: Sequence[str]) -> int:
    """Run the sub-command; return the exit status: 0, 1 after a failure, 2 for invalid arguments."""
    settings = settings_of(PromptSettings, _parser().parse_args(arguments))
    try:
        status: int = _client_prompts().ask_prompts(settings, _sampling(settings))
        return status
    except ConchError as error:
        say(f"conch client prompts: {error}")
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
        raise Unavailable(f"the package '{missing.name}' is missing: {install_command('client')}") from None


def _sampling(settings: PromptSettings) -> dict[str, Any]:
    """Return the sampling parameters, in order of precedence: flags, --sampling-parameters, defaults."""
    flags = {"temperature": settings.temperature, "max_tokens": settings.max_tokens, "lora_name": settings.lora_name}
    flags = {key: value for key, value in flags.items() if value is not None}
    return {**_DEFAULTS, **settings.sampling_parameters, **flags}


def _parser() -> CommandParser:
    parser = CommandParser("conch client", description="Send requests to a server over Triton's gRPC protocol.")
    commands = parser.add_subparsers(title="commands", metavar="command", dest="command", required=True)
    prompts = commands.add_parser(
        "prompts", help="send a file of prompts, write a file of answers", description=_DESCRIPTION
    )
    prompts.add_flags(PromptSettings)
    return parser


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
