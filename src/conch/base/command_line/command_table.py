"""All commands: where each is, what it does, examples, and what its exit statuses mean.

`conch`, the help of each command, completion and docs/reference/commands.md read this table.
"""

from dataclasses import dataclass
from types import MappingProxyType

_STATUSES = "0 done; 1 failed; 2 invalid arguments; 130 interrupted"


@dataclass(frozen=True, slots=True)
class Command:
    """A command: its module below `conch`, a line of help, and examples (none here, where its own help has some).

    `extra` is the extra that has the packages it needs.
    """

    module: str
    help: str
    examples: tuple[str, ...] = ()
    statuses: str = _STATUSES
    extra: str = ""


# Task → name → command. A command is a function of its name, with `_` for `-`.
TASKS = MappingProxyType(
    {
        "serve": {
            "run": Command(
                "clients.run.command",
                "serve one model or chat with it, without configuration",
                ("conch run model.onnx", "conch run hf://Qwen/Qwen2.5-0.5B-Instruct 'Why is the sky blue?'"),
            ),
            "serve": Command(
                "server.commands.serve",
                "serve a model repository over HTTP and gRPC",
                (
                    "conch serve --model-repository=models",
                    "conch serve --model-repository=models --http-port=9000 --strict=true",
                ),
            ),
            "ps": Command(
                "clients.run.servers", "list the loaded models of all running servers", ("conch ps", "conch ps --json")
            ),
            "stop": Command(
                "clients.run.servers", "stop the server of a model", ("conch stop digits", "conch stop --all")
            ),
            "doctor": Command(
                "clients.doctor",
                "inspect machine, installation and servers, and name cures",
                ("conch doctor", "conch doctor --url http://gpu1:8000 --json"),
                statuses="0 nothing to fix; 1 a problem was found; 2 invalid arguments",
            ),
            "health": Command(
                "clients.health",
                "ask a server whether it is ready; the health check of containers",
                ("conch health", "conch health --live --port 9000"),
                statuses="0 ready; 1 not ready; 2 invalid arguments",
            ),
        },
        "models": {
            "pull": Command(
                "clients.run.disk",
                "fetch a model to this machine's disk, for conch run",
                (
                    "conch pull hf://Qwen/Qwen2.5-0.5B-Instruct",
                    "conch pull oci://registry.local/models/digits:1",
                ),
            ),
            "ls": Command(
                "clients.run.disk", "list the models on this machine's disk", ("conch ls", "conch ls --json")
            ),
            "show": Command(
                "clients.run.disk",
                "show a model on disk or on a running server",
                ("conch show digits", "conch show model.onnx --json"),
            ),
            "rm": Command(
                "clients.run.disk",
                "remove a model from this machine's disk",
                ("conch rm digits", "conch rm digits detector"),
            ),
            "new": Command("clients.python_app.new", "create a model: code, configuration, client and tests"),
            "repo": Command(
                "clients.repository.command",
                "add, list, show, pack and pull models",
                ("conch repo add model.onnx --repository models", "conch repo list models"),
            ),
            "check": Command(
                "check.command",
                "find errors in repositories, manifests and rules",
                ("conch check models", "conch check --strict models deploy"),
                statuses="0 no errors; 1 errors found; 2 invalid arguments",
            ),
        },
        "clients": {
            "chat": Command(
                "clients.chat",
                "chat with a language model in the terminal",
                ("conch chat", "conch chat --url http://gpu1:8000 'Why is the sky blue?'"),
            ),
            "launch": Command(
                "clients.launch",
                "start a coding agent with a model of a running server",
                ("conch launch claude", "conch launch codex --run hf://Qwen/Qwen3-8B -- exec 'Fix the tests'"),
                statuses="0 done, or that of the program; 1 failed; 2 invalid arguments",
            ),
            "client": Command(
                "clients.client",
                "send a file of prompts to a server",
                (
                    "conch client prompts -m llama --input-prompts prompts.txt",
                    "conch client prompts -m llama -s",
                ),
            ),
        },
        "measure and choose": {
            "bench": Command(
                "measure.bench.command",
                "measure a server: latency, throughput, tokens",
                statuses="0 measured; 1 no successful request; 2 invalid arguments; 3 measured, but not to be compared",
            ),
            "whatif": Command(
                "measure.twin.command",
                "forecast a model under another configuration or load",
                ("conch whatif densenet --instances 3", "conch whatif detector --delay 500us --rate 2x"),
            ),
            "tune": Command("measure.tune.command", "find the best configuration of a model by measuring"),
            "advise": Command(
                "measure.advise.command",
                "recommend engine, backend, layout and GPUs for models",
                ("conch advise model.onnx", "conch advise model.onnx --load 200/s --slo latency:50ms"),
            ),
            "engine": Command(
                "measure.advise.engine",
                "plan the GPUs for a language model",
                ("conch engine plan ./checkpoint", "conch engine plan ./checkpoint --gpus 2x80GiB --concurrency 32"),
            ),
        },
        "observe": {
            "top": Command(
                "clients.top",
                "show the models of running servers live",
                ("conch top", "conch top --url http://gpu1:8000 --interval 5s"),
            ),
            "why": Command(
                "measure.why.command",
                "say why a request, or the slowest ones, took their time",
                ("conch why p99", "conch why detector --last 5m", "conch why my-request-7 --html why.html"),
            ),
            "rules": Command(
                "operate.monitoring.commands.rules",
                "write alerting rules, and find alerts that can never fire",
                ("conch rules list", "conch rules prove rules.yaml"),
                extra="monitoring",
            ),
            "drill": Command(
                "operate.monitoring.commands.drill",
                "make an alert fire on a running system, and time it",
                ("conch drill --config", "conch drill ConchModelNotReady --prometheus http://127.0.0.1:9090"),
                extra="monitoring",
            ),
            "alerts": Command(
                "operate.alerts.command",
                "receive alerts of Alertmanager and send them to chat services",
                ("conch alerts receive --config alerts.yaml", "conch alerts test --config alerts.yaml"),
                extra="monitoring",
            ),
            "dashboards": Command(
                "operate.monitoring.commands.dashboards",
                "write Grafana dashboards",
                ("conch dashboards --list", "conch dashboards --output dashboards"),
                extra="monitoring",
            ),
            "translate": Command(
                "operate.monitoring.commands.translate",
                "rewrite dashboards and rules for other metric names",
                (
                    "conch translate --from triton --to conch rules.yaml",
                    "conch translate --from triton --to conch --query nv_inference_count",
                ),
                statuses="0 all translated; 1 some are unchanged; 2 invalid arguments",
                extra="monitoring",
            ),
            "trace": Command(
                "operate.traces.command",
                "show recorded traces of requests as waterfalls",
                ("conch trace view trace.json", "conch trace view trace.json --html trace.html"),
            ),
            "record": Command(
                "measure.incidents.record",
                "write an incident bundle of a running server",
                ("conch record", "conch record localhost:8000 --duration 10m -o incident.conch.tar.zst"),
            ),
            "replay": Command(
                "measure.incidents.replay",
                "run the requests of an incident bundle again, and compare",
                (
                    "conch replay incident.conch.tar.zst",
                    "conch replay incident.conch.tar.zst --on stand-in --instances 2",
                ),
            ),
            "audit": Command(
                "server.commands.audit",
                "verify the audit log of limits",
                ("conch audit verify audit.jsonl", "conch audit verify audit.jsonl audit.jsonl.1"),
                statuses="0 intact; 1 damaged; 2 unreadable, or invalid arguments",
            ),
            "gpu-exporter": Command(
                "operate.exporter",
                "export metrics of GPUs and other accelerators",
                ("conch gpu-exporter", "conch gpu-exporter -a 127.0.0.1:9400 --dcgm-names both"),
            ),
            "tunnel": Command(
                "operate.tunnel.command",
                "forward a metrics port over SSH, supervised",
                (
                    "conch tunnel gpu1 --forward 9400:localhost:9400",
                    "conch tunnel ops@gpu1 --forward 8002:localhost:8002",
                ),
                extra="monitoring",
            ),
        },
        "deploy and scale": {
            "k8s": Command(
                "operate.deployment.command",
                "write Kubernetes objects of a deployment",
                ("conch k8s render gpt2 -f values.yaml", "conch k8s render gpt2 -f values.yaml -o gpt2.yaml"),
                extra="deploy",
            ),
            "autoscale": Command(
                "operate.scaling.commands.command",
                "simulate autoscalers, and explain one that does not scale",
                ("conch autoscale doctor hpa.yaml", "conch autoscale simulate --traffic diurnal:200:1000"),
                extra="deploy",
            ),
            "fleet": Command(
                "operate.fleet.command",
                "run replicas behind a proxy and scale them with an HPA",
                ("conch fleet demo", "conch fleet up --model-repository models --hpa hpa.yaml"),
                extra="deploy",
            ),
        },
        "terminal": {
            "completion": Command(
                "clients.completion",
                "print the completion script of bash, zsh or fish",
                (
                    "conch completion bash > ~/.local/share/bash-completion/completions/conch",
                    "conch completion fish > ~/.config/fish/completions/conch.fish",
                ),
            ),
        },
    }
)
COMMANDS = MappingProxyType({name: command for commands in TASKS.values() for name, command in commands.items()})


def examples_text(name: str) -> str:
    """Return the examples of a command for its help, "" without any."""
    examples = COMMANDS[name].examples if name in COMMANDS else ()
    return "\n".join(["", "examples:", *(f"  {example}" for example in examples), ""]) if examples else ""
