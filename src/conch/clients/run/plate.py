"""What `conch run` prints when the model is ready: device, memory, addresses, and requests to copy."""

from argparse import Namespace

from rich.console import Console

from conch.clients.run.memory import size_text
from conch.clients.run.snippets import Api, curl, python, tensors
from conch.domain.model_config import InstanceKind, ModelConfig
from conch.server.core.generative_model import GenerativeModel
from conch.server.core.served_model import ServedModel
from conch.server.server import Server


def print_plate(server: Server, given: Namespace, need: int) -> None:
    """Print the facts of a server whose models are ready."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    record = server.record()
    models = [model for model in server.inference.models() if model.ready]
    for degradation in server.degradations.current():
        console.print(f"degraded: {degradation.model and degradation.model + ': '}{degradation}", style="yellow")
    if record.http.rpartition(":")[2] != str(given.port) and given.port:
        console.print(f"port {given.port} is in use: HTTP is on the next free one")
    for model in models:
        console.print(f"{model.config.name} is ready on {device(model.config)}, backend {model.config.backend}")
    console.print(f"memory  about {size_text(need)}")
    console.print(f"URL     {record.url}   (gRPC {record.grpc}, metrics http://{record.metrics}/metrics)")
    shown = _entrance(models)
    if shown is None:
        return
    config = shown.config
    if not isinstance(shown, GenerativeModel):
        console.print(f"inputs  {tensors(config.inputs)}\noutputs {tensors(config.outputs)}")
    api, with_key = _api(shown), bool(given.api_key_file)
    console.print(f"\n{curl(record.url, config, api=api, with_key=with_key)}")
    console.print(f"\n{python(record.url, config, api=api, with_key=with_key)}")
    console.print("\nCtrl-C stops the server; conch ps shows it.")


def device(config: ModelConfig) -> str:
    """Return where the instances of a loaded model compute."""
    gpus = sorted({gpu for group in config.instance_groups if group.kind is InstanceKind.GPU for gpu in group.gpus})
    return f"GPU {', '.join(map(str, gpus))}" if gpus else "CPU"


def _entrance(models: list[ServedModel]) -> ServedModel | None:
    """Return the model for the example: the first ensemble, or else the first model."""
    return next((model for model in models if model.config.is_ensemble), models[0] if models else None)


def _api(model: ServedModel) -> Api:
    if not isinstance(model, GenerativeModel):
        return Api.INFER
    return Api.CHAT if model.engine.info.chat_template else Api.COMPLETION
