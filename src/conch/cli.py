"""The `conch` command. Each sub-command is a function of its name, with `_` for `-`, imported when it runs."""

import os
import select
import sys
from codecs import lookup
from importlib import import_module
from io import TextIOWrapper

# Task → its sub-commands: name → module, help. A command parses its arguments and returns the exit status.
_TASKS = {
    "serve": {
        "run": ("clients.run.command", "serve one model or chat with it, without configuration"),
        "serve": ("server.commands.serve", "serve a model repository over HTTP and gRPC"),
        "ps": ("clients.run.servers", "list the loaded models of all running servers"),
        "stop": ("clients.run.servers", "stop the server of a model"),
        "doctor": ("clients.doctor", "inspect machine, installation and server, and name cures"),
        "health": ("clients.health", "ask a server whether it is ready; the health check of containers"),
    },
    "models": {
        "pull": ("clients.run.disk", "fetch a model to this machine's disk, for conch run"),
        "ls": ("clients.run.disk", "list the models on this machine's disk"),
        "show": ("clients.run.disk", "show a model's configuration, files and memory"),
        "rm": ("clients.run.disk", "remove a model from this machine's disk"),
        "new": ("clients.python_app.new", "create a model: code, configuration, client and tests"),
        "repo": ("clients.repository.command", "add, list, show, pack and pull models"),
        "check": ("check.command", "find errors in repositories, manifests and rules"),
    },
    "clients": {
        "chat": ("clients.chat", "chat with a language model in the terminal"),
        "client": ("clients.client", "send a file of prompts to a server"),
    },
    "measure and choose": {
        "bench": ("measure.bench.commands.command", "measure a server: latency, throughput, tokens"),
        "tune": ("measure.tune.commands.command", "find the best configuration of a model by measuring"),
        "advise": ("measure.advise.command", "recommend engine, backend, layout and GPUs for models"),
        "engine": ("measure.advise.engine", "plan the GPUs for a language model"),
    },
    "observe": {
        "top": ("clients.top", "show the models of a running server live"),
        "rules": ("operate.monitoring.commands.rules", "write alerting rules, and find alerts that can never fire"),
        "drill": ("operate.monitoring.commands.drill", "make an alert fire on a running system, and time it"),
        "alerts": ("operate.alerts.command", "receive alerts of Alertmanager and send them to chat services"),
        "dashboards": ("operate.monitoring.commands.dashboards", "write Grafana dashboards"),
        "translate": ("operate.monitoring.commands.translate", "rewrite dashboards and rules for other metric names"),
        "trace": ("operate.traces.command", "show recorded traces of requests as waterfalls"),
        "audit": ("server.commands.audit", "verify the audit log of limits"),
        "gpu-exporter": ("operate.exporter.command", "export metrics of GPUs and other accelerators"),
        "tunnel": ("operate.tunnel.command", "forward a metrics port over SSH, supervised"),
    },
    "deploy and scale": {
        "k8s": ("operate.deployment.command", "write Kubernetes objects of a deployment"),
        "autoscale": ("operate.scaling.commands.command", "simulate autoscalers, and explain one that does not scale"),
        "fleet": ("operate.fleet.command", "run replicas behind a proxy and scale them with an HPA"),
    },
}
_COMMANDS = {name: module for commands in _TASKS.values() for name, (module, _) in commands.items()}

# Commands that need packages of an extra.
_EXTRAS = dict.fromkeys(("rules", "drill", "alerts", "dashboards", "translate", "tunnel"), "monitoring")
_EXTRAS |= dict.fromkeys(("k8s", "autoscale", "fleet"), "deploy")
_BROKEN_PIPE = 141  # as of a program that SIGPIPE ended
_GLOBAL_FLAGS = ("--help", "--version")


def main() -> None:
    """Run the command line of this process and exit with its status."""
    if os.getpid() == 1:
        from conch.server.commands.init_process import become_init

        become_init()
    _configure_encodings()
    arguments = sys.argv[1:]
    if arguments and arguments[0] in _COMMANDS:
        name = arguments[0]
        run = getattr(import_module(f"conch.{_COMMANDS[name]}"), name.replace("-", "_"))
        try:
            status = run(arguments[1:])
            print(end="", flush=True)
        except ModuleNotFoundError as error:
            if name not in _EXTRAS:
                raise
            remedy = f"pip install 'conch-server[{_EXTRAS[name]}]'"
            print(f"conch {name}: {error.name} is not installed; {remedy}", file=sys.stderr)
            status = 1
        except BrokenPipeError:
            if not _has_lost_reader():
                raise
            # Otherwise the interpreter writes the rest at exit, with a message.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            status = _BROKEN_PIPE
        sys.exit(status)
    _without_command(arguments or ["--help"])


def _has_lost_reader() -> bool:
    """Return whether the reader of stdout, such as head, has ended."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))


def _configure_encodings() -> None:
    r"""Print characters that the terminal's encoding lacks as \u2713; read stdin as UTF-8 if its encoding is ASCII."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if isinstance(sys.stdin, TextIOWrapper) and lookup(sys.stdin.encoding).name == "ascii":
        sys.stdin.reconfigure(encoding="utf-8", errors="replace")


def _without_command(arguments: list[str]) -> None:
    """Handle --help, --version and invalid commands. Exits the process."""
    from argparse import SUPPRESS, RawDescriptionHelpFormatter

    from conch.base.build_info import build_line
    from conch.base.command_line.command_parser import CommandParser

    parser = CommandParser(
        "conch",
        usage="conch [-h] [--version] COMMAND …",
        description="An inference server for Triton's model repositories, in Python.",
        epilog=_command_list(),
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"conch {build_line()}")
    commands = parser.add_subparsers(metavar="command", required=True, help=SUPPRESS)
    for name in _COMMANDS:
        commands.add_parser(name)
    if arguments[0] == "help":
        arguments = ["--help"]
    elif arguments[0].startswith("--") and not any(flag.startswith(arguments[0]) for flag in _GLOBAL_FLAGS):
        parser.error(f"the first argument must be a command: conch serve {arguments[0]} …")
    parser.parse_args(arguments)


def _command_list() -> str:
    """Return the commands by task, a line each."""
    width = max(map(len, _COMMANDS))
    lines: list[str] = []
    for task, commands in _TASKS.items():
        lines += [f"{task}:", *(f"  {name:<{width}}  {text}" for name, (_, text) in commands.items()), ""]
    return "\n".join([*lines, "conch COMMAND --help describes a command."])
