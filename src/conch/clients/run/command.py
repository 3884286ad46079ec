"""`conch run`: serve a model of any kind without configuration, and chat with it if it is a language model."""

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import fields
from ipaddress import ip_address
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

from conch.base.command_line.command_parser import CommandParser, printing
from conch.base.command_line.option_types import count, port_or_any
from conch.base.command_line.say import say
from conch.base.control_characters import printable
from conch.base.errors import ConchError, InvalidRequest, Unavailable
from conch.clients.run.preloading import preloading

if TYPE_CHECKING:
    from conch.clients.run.loading import LoadReader
    from conch.clients.run.source import RunSource
    from conch.server.backends.processes.fork_server import ForkServer
    from conch.server.options.server_options import ServerOptions
    from conch.server.server import Server

_FAILURE, _USAGE_ERROR, _INTERRUPTED = 1, 2, 130
_PORT, _PORT_ATTEMPTS, _LAST_PORT = 8000, 100, 65533
_LOOPBACK = ("localhost",)
_SERVICES = ("http", "grpc", "metrics")
_STOP_S = 10.0
_RELOAD_POLL_S = 1


def run(arguments: Sequence[str]) -> int:
    """Serve a model until SIGTERM or Ctrl-C, or chat with a language model; return the exit status."""
    with preloading(arguments) as fork_server:
        parser = run_parser()
        given = parser.parse_intermixed_args(arguments)
        if not given.model:
            parser.error("X is missing: a file, a folder, a URL or the name of a pulled model")
        if status := exit_status("run", lambda: _check_address(given)):
            return status
        if not given.reload:
            return exit_status("run", lambda: _run(given, fork_server))
        from conch.clients.run.reload import files_of, run_again_after_change

        before = files_of(given.model)
        status = exit_status("run", lambda: _run(given, fork_server))
    if status == _FAILURE and not given.was_ready:
        return exit_status("run", lambda: run_again_after_change(given.model, before)) or status
    return status


def exit_status(command: str, action: Callable[[], int | None], given: Namespace | None = None) -> int:
    """Return what the action returns, 0 for None, 1 after an error and 130 after Ctrl-C, which are printed.

    `given` has the value of --quiet.
    """
    try:
        with printing(given) if given is not None else nullcontext():
            return action() or 0
    except ConchError as error:
        # Files and servers choose parts of messages.
        say(f"conch {command}: {error}")
        return _FAILURE
    except KeyboardInterrupt:
        print(f"conch {command}: interrupted", file=sys.stderr)
        return _INTERRUPTED


@contextmanager
def served(model: str) -> Iterator[str]:
    """Serve a language model in a child process around a block, which gets host:port. Raises ConchError."""
    given = run_parser().parse_args([model])
    source, need, talks = _inspected(given)
    if not talks:
        raise InvalidRequest(f"'{model}' is not a language model")
    with _child(given, source, need) as load:
        yield load.address


def _inspected(given: Namespace) -> "tuple[RunSource, int, bool]":
    """Return the source, the memory it needs in bytes, and whether it is a language model. Raises ConchError."""
    from conch.clients.run.memory import check_memory
    from conch.clients.run.source import chats, find_source, with_steps

    source = find_source(given)
    models = source.models()
    if len(models) == 1 and models[0].config.is_ensemble:
        source = with_steps(models[0].directory, given)
        models = source.models()
    need = check_memory(models, takes_instances=source.takes_instances)
    talks = any(map(chats, models))
    for files in models:
        files.discard()
    return source, need, talks


def _run(given: Namespace, fork_server: "ForkServer | None") -> int:
    source, need, talks = _inspected(given)
    if given.prompt and not talks:
        raise InvalidRequest(f"'{given.model}' is not a language model, so it takes no prompt: {given.prompt[0]!r}")
    if not talks or given.serve:
        _refuse_answer_settings(given, "--serve" if talks else f"'{given.model}', which is not a language model,")
        return _serve(given, source, need, fork_server=fork_server)
    if not given.prompt and not sys.stdin.isatty():
        given.prompt = [sys.stdin.read().strip()]
        if not given.prompt[0]:
            raise InvalidRequest("no prompt, and stdin is not a terminal: --serve serves the model without a chat")
    return _converse(given, source, need)


def _refuse_answer_settings(given: Namespace, server: str) -> None:
    """Refuse options for answers that are given to a server without a chat: requests have their own."""
    from conch.clients.terminal_chat import AnswerSettings

    names = [field.name for field in fields(AnswerSettings)]
    unused = [f"--{name.replace('_', '-')}" for name in names if hasattr(given, name)]
    if unused:
        raise InvalidRequest(f"{', '.join(unused)} would have no effect with {server}: requests have these fields")


def _serve(
    given: Namespace,
    source: "RunSource",
    need: int,
    writer: int | None = None,
    fork_server: "ForkServer | None" = None,
) -> int:
    """Run the server in this process. If it is ready, print where, or write its host:port to the pipe `writer`."""
    from conch.clients.run.loading import LoadClock, shown_loading
    from conch.clients.run.plate import engine_devices, print_plate
    from conch.machine.memory import size_text
    from conch.server.commands.serve import run_server

    options = _options(given, source)
    with ExitStack() as shown:
        descriptor = writer
        if writer is None and sys.stderr.isatty():
            say(f"loading {printable(given.model)}, about {size_text(need)} of memory")
            descriptor = shown.enter_context(shown_loading())
        clock = LoadClock(descriptor)

        def ready(server: "Server") -> None:
            given.was_ready = True
            server.report_phases(None)
            if given.reload:
                server.log.update({"log_info": True})  # of later loads
            seconds = clock.ready(server.record().http, engine_devices(server))
            shown.close()
            if writer is None:
                print_plate(server, given, need, seconds)

        _log_linked_paths(source)
        return run_server(options, (), ready, clock.enter, fork_server)


def _log_linked_paths(source: "RunSource") -> None:
    """Let the log of this process name the user's files, not the links to them that the server reads."""
    import logging

    make = logging.getLogRecordFactory()

    def record(*arguments: Any, **keywords: Any) -> logging.LogRecord:
        made = make(*arguments, **keywords)
        made.msg, made.args = source.with_linked_paths(made.getMessage()), ()
        return made

    logging.setLogRecordFactory(record)


def _options(given: Namespace, source: "RunSource") -> "ServerOptions":
    """Return the options of the server. Raises InvalidRequest."""
    from dataclasses import replace

    from conch.server.options.parser import OptionError, parse

    flags = [
        *source.flags,
        f"--http-address={given.address}",
        f"--grpc-address={given.address}",
        *(f"--{name}-port={given.port and given.port + number}" for number, name in enumerate(_SERVICES)),
        "--log-info=false",
    ]
    if given.api_key_file:
        flags.append(f"--api-key-file={given.api_key_file}")
    if given.reload:
        flags += ["--model-control-mode=poll", f"--repository-poll-secs={_RELOAD_POLL_S}"]
    try:
        options = parse(flags, os.environ)
    except OptionError as error:
        raise InvalidRequest("; ".join(error.problems)) from None
    # For conch stop. Loads are not allowed: a request may bring code along, which a web page could send to loopback.
    unloads = bool(given.api_key_file) or _is_local(given.address)
    return replace(options, port_attempts=_PORT_ATTEMPTS, source=source.text, unloads=unloads)


def _converse(given: Namespace, source: "RunSource", need: int) -> int:
    """Run the server in a child process, and a conversation or one answer in this one."""
    from conch.base.command_line.flags import settings_of
    from conch.base.http.credentials import client_key
    from conch.clients.chat import chosen_model, talk
    from conch.clients.openai_client import OpenAIClient
    from conch.clients.terminal_chat import AnswerSettings
    from conch.machine.memory import size_text

    with _child(given, source, need) as load:
        given.was_ready = True
        client = OpenAIClient(f"http://{load.address}/v1", client_key(given.api_key_file))
        model = chosen_model(client, given.name)
        if not given.prompt:
            say(f"{model} is ready on {load.devices} at http://{load.address}")
            say(f"memory about {size_text(need)}, loaded in {load.seconds}")
        return talk(client, model, given.prompt, settings_of(AnswerSettings, given))


@contextmanager
def _child(given: Namespace, source: "RunSource", need: int) -> "Iterator[LoadReader]":
    """Run the server in a child process around a block, which gets its load. Raises Unavailable if it fails.

    The fork saves the imports of another interpreter; this process has no threads yet, apart from a download's.
    """
    from conch.clients.run.loading import LoadReader

    reader, writer = os.pipe()
    server = get_context("fork").Process(target=_serve_child, args=(given, source, need, writer))
    server.start()
    os.close(writer)
    try:
        load = LoadReader(reader)
        load.show()
        if not load.address:
            server.join()
            raise Unavailable(f"the server of '{given.model}' ended with status {server.exitcode}")
        yield load
    finally:
        os.close(reader)
        server.terminate()
        server.join(_STOP_S)
        server.kill()  # no-op after the end
        server.join()


def _serve_child(given: Namespace, source: "RunSource", need: int, writer: int) -> None:
    """Run the server in its own session, because Ctrl-C in the terminal ends an answer, not the server."""
    from conch.base.process.prctl import die_with_parent

    die_with_parent()
    os.setsid()
    with suppress(KeyboardInterrupt):
        sys.exit(_serve(given, source, need, writer))


def _check_address(given: Namespace) -> None:
    """Raise InvalidRequest for ports beyond the last one, and for an address of other machines without keys."""
    if given.port > _LAST_PORT:
        raise InvalidRequest(f"--port {given.port}: gRPC and metrics take the next two ports, so at most {_LAST_PORT}")
    if not _is_local(given.address) and not given.api_key_file and not given.insecure:
        raise InvalidRequest(
            f"--address {given.address} lets other machines use the model: give --api-key-file FILE (lines of 'NAME "
            "infer,metrics KEY'), or --insecure to serve without keys"
        )


def _is_local(address: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return address in _LOOPBACK or ip_address(address).is_loopback
    except ValueError:
        return False


def run_parser() -> CommandParser:
    """Return the parser of `conch run`."""
    from conch.clients.repository.command import add_entry_flags
    from conch.clients.terminal_chat import AnswerSettings

    parser = CommandParser("conch run", description=_DESCRIPTION)
    parser.set_defaults(was_ready=False)
    # Checked later: argparse would call the prompt required, too.
    parser.add_argument("model", metavar="X", nargs="?", help="what to serve")
    parser.add_argument("prompt", nargs="*", help="prompt for a language model, which is answered once")
    parser.add_argument("--serve", action="store_true", help="serve a language model without a chat")
    parser.add_argument(
        "--port",
        type=port_or_any,
        default=_PORT,
        metavar="N",
        help="first port to try; 0 for any (default: %(default)s)",
    )
    parser.add_argument("--address", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--api-key-file", default="", metavar="FILE", help="require a key of this file from clients")
    parser.add_argument("--insecure", action="store_true", help="allow an address of other machines without a key")
    parser.add_argument("--reload", action="store_true", help="load the model again when its files change")
    parser.add_argument(
        "--allow-pickled-models", action="store_true", help="load pickles, which can run any code, in a process"
    )
    parser.add_argument("--instances", type=count, default=0, metavar="N", help="copies of the model that compute")
    add_entry_flags(parser)
    parser.add_flags(AnswerSettings)
    return parser


_DESCRIPTION = (
    "Serve X, without configuration: a file (.onnx, .gguf, .pt, .pt2, .xml, forests of XGBoost, LightGBM and "
    "treelite), a folder (checkpoint, OpenVINO IR, SavedModel, a model's folder, a repository), a model.py, "
    "hf://org/name, oci://image, another remote repository, or a pulled model. A language model starts a chat on a "
    "terminal and answers a prompt of the arguments or a pipe."
)
