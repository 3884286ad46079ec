"""`conch launch`: start a coding agent with the environment that makes it use a server's model."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from conch.base.command_line.command_parser import CommandParser
from conch.base.command_line.flag_values import BOOLEAN, value_kind
from conch.base.command_line.flags import flag_field, settings_of
from conch.base.command_line.option_types import duration
from conch.base.command_line.wait_for_model import DEFAULT_WAIT_S, WAIT_HELP, wait_for_model
from conch.base.errors import InvalidRequest, NotFound
from conch.base.http.credentials import KEY_HELP, client_key
from conch.clients.chat import chosen_model
from conch.clients.openai_client import OpenAIClient
from conch.clients.run.command import exit_status, served
from conch.clients.server_view import find_address

_KEY = "CONCH_API_KEY"
# Configurations of the programs expand {env:…} and {file:…}: the name of a server's model must not read files.
_EXPANDED = re.compile(r"[{}$`\x00-\x1f\x7f]")
# For servers without keys: the programs insist on one.
_NO_KEY = "none"


@dataclass(frozen=True, slots=True)
class LaunchSettings:
    """The flags of `conch launch`."""

    url: str = flag_field(
        "", "", "URL of the server (default: the newest of this user, or port 8000)", value_kind("URL")
    )
    run: str = flag_field("", "", "serve this model as conch run does, until the program ends", value_kind("X"))
    model: str = flag_field("", "", "name of the model (default: the only language model)", value_kind("NAME"))
    api_key_file: str | None = flag_field(None, "", KEY_HELP, value_kind("FILE"))
    ca_file: str = flag_field(
        "", "", "certificates to trust, also by the program (default: the server's own)", value_kind("FILE")
    )
    wait: float = flag_field(DEFAULT_WAIT_S, "", WAIT_HELP, value_kind("TIME", duration))
    print: bool = flag_field(False, "", "print the lines for a shell instead", BOOLEAN, bare=True)


class ModelPlace(NamedTuple):
    """What a program is to use; `context` is in tokens of prompt and answer together, 0 if it is unknown."""

    url: str
    model: str
    context: int
    key: str


class _Invocation(NamedTuple):
    """Variables and first arguments of a program."""

    variables: Mapping[str, str]
    arguments: Sequence[str] = ()


class _Program(NamedTuple):
    package: str  # of npm
    ca_variable: str  # names the file of certificates to trust
    invocation: Callable[[ModelPlace], _Invocation]


def _claude(target: ModelPlace) -> _Invocation:
    models = ("ANTHROPIC_MODEL", *(f"ANTHROPIC_DEFAULT_{size}_MODEL" for size in ("OPUS", "SONNET", "HAIKU")))
    variables = {
        "ANTHROPIC_BASE_URL": target.url,
        "ANTHROPIC_AUTH_TOKEN": target.key,
        "ANTHROPIC_API_KEY": "",
        **dict.fromkeys(models, target.model),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    if target.context:
        variables["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] = str(target.context)
        variables["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] = str(target.context)
        variables["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = str(_max_output(target))
    return _Invocation(variables)


def _codex(target: ModelPlace) -> _Invocation:
    provider = {
        "model": target.model,
        "model_provider": "conch",
        "model_providers.conch.name": "Conch",
        "model_providers.conch.base_url": f"{target.url}/v1",
        "model_providers.conch.wire_api": "responses",
        "model_providers.conch.env_key": _KEY,
        **({"model_context_window": target.context} if target.context else {}),
    }
    settings = [f"{name}={json.dumps(value)}" for name, value in provider.items()]
    return _Invocation({_KEY: target.key}, [word for setting in settings for word in ("-c", setting)])


def _opencode(target: ModelPlace) -> _Invocation:
    limits = {"limit": {"context": target.context, "output": _max_output(target)}} if target.context else {}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Conch",
        "options": {"baseURL": f"{target.url}/v1", "apiKey": f"{{env:{_KEY}}}"},
        "models": {target.model: {"name": target.model, **limits}},
    }
    config = {"provider": {"conch": provider}, "model": f"conch/{target.model}"}
    return _Invocation({_KEY: target.key, "OPENCODE_CONFIG_CONTENT": json.dumps(config)})


def _max_output(target: ModelPlace) -> int:
    """Return how many tokens of the context an answer may have."""
    return min(target.context // 4, 32_000)


_PROGRAMS: Mapping[str, _Program] = MappingProxyType(
    {
        "claude": _Program("@anthropic-ai/claude-code", "NODE_EXTRA_CA_CERTS", _claude),
        "codex": _Program("@openai/codex", "CODEX_CA_CERTIFICATE", _codex),
        "opencode": _Program("opencode-ai", "NODE_EXTRA_CA_CERTS", _opencode),
    }
)


def launch(arguments: Sequence[str]) -> int:
    """Start a program, or print how; return its exit status."""
    words = [*arguments]
    split = words.index("--") if "--" in words else len(words)
    given = _parser().parse_args(words[:split])
    settings = settings_of(LaunchSettings, given)
    return exit_status("launch", lambda: _launch(given.program, settings, words[split + 1 :]))


def _launch(name: str, settings: LaunchSettings, arguments: Sequence[str]) -> int:
    program = _PROGRAMS[name]
    path = shutil.which(name)
    if path is None and not settings.print:
        raise NotFound(f"the program '{name}' is not on PATH; npm install -g {program.package} installs it")
    if settings.print and settings.run:
        raise InvalidRequest("--print needs a server that keeps running: give --url instead of --run")
    key = client_key(settings.api_key_file)
    with ExitStack() as stack:
        url = f"http://{stack.enter_context(served(settings.run))}" if settings.run else settings.url
        address = find_address(url or None, None)
        url = (url if "://" in url else address.url).rstrip("/").removesuffix("/v1")  # its name is in the certificate
        ca_file = settings.ca_file or address.certificate
        client = OpenAIClient(f"{url}/v1", key, ca_file)
        model = wait_for_model(partial(chosen_model, client, settings.model), "conch launch", settings.wait)
        if _EXPANDED.search(model):
            raise InvalidRequest(f"{model[:200]!a} as the name of a model would be expanded by '{name}' or a shell")
        shown = f"${{{_KEY}}}" if settings.print and key else key or _NO_KEY
        target = ModelPlace(url, model, client.context_length(model), shown)
        invocation = program.invocation(target)
        if ca_file:
            trusted = {program.ca_variable: str(Path(ca_file).absolute())}
            invocation = invocation._replace(variables={**invocation.variables, **trusted})
        words = [path or name, *invocation.arguments, *arguments]
        if settings.print:
            _print(invocation, [name, *words[1:]])
            return 0
        environment = {**os.environ, **invocation.variables}
        if not settings.run:
            os.execve(words[0], words, environment)  # noqa: S606 - the program is the user's
        signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is the program's
        return subprocess.run(words, env=environment, check=False).returncode


def _print(invocation: _Invocation, words: Sequence[str]) -> None:
    """Print lines for a shell. The key is named, not printed."""
    for name, value in invocation.variables.items():
        quoted = f'"{value}"' if value == f"${{{_KEY}}}" else shlex.quote(value)
        if value != f"${{{name}}}":
            print(f"export {name}={quoted}")
    print(shlex.join(words))


def _parser() -> CommandParser:
    parser = CommandParser(
        "conch launch",
        description="Start a coding agent with a model of a running server, or of one that --run starts. Arguments "
        "after -- are the program's.",
    )
    parser.add_argument("program", choices=tuple(_PROGRAMS), help="program to start")
    parser.add_flags(LaunchSettings)
    return parser
