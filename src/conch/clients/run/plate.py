"""What `conch run` prints when the model is ready: device, memory, addresses, and requests to copy."""

import sys
from argparse import Namespace

from rich.console import Console

from conch.base.command_line.say import folded
from conch.clients.run.snippets import Api, curl, python, takes_image, tensors
from conch.domain.llm.text_form import TOKENIZES, TextForm
from conch.domain.llm.text_model import Task
from conch.domain.model_config import InstanceKind
from conch.machine.memory import size_text
from conch.server.core.generative_model import GenerativeModel
from conch.server.core.served_model import ServedModel
from conch.server.server import Server

_LABEL = 8  # columns of "memory  "
_MAX_REQUESTS = 4  # models with a request to copy

_UNDECLARED = "inputs  none declared, so requests that have inputs are refused. A method of the class declares them:"
_METHOD = """
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [-1]})
        config.add_output({"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [-1]})
        return config"""


def print_plate(server: Server, given: Namespace, need: int, seconds: str) -> None:
    """Print the facts of a server whose models are ready; `seconds` says after how many."""
    console = Console(highlight=False, markup=False, soft_wrap=True)

    def write(line: str, indent: int = 2, style: str | None = None) -> None:
        console.print(folded(line, sys.stdout, indent), style=style)

    record = server.record()
    ready = (model for model in server.inference.models() if model.ready)
    # Ensembles are entrances; the models of their steps come after them.
    models = sorted(ready, key=lambda model: (not model.config.is_ensemble, model.config.name))
    for degradation in server.degradations.current():
        write(f"degraded: {degradation.model and degradation.model + ': '}{degradation}", style="yellow")
    if record.http.rpartition(":")[2] != str(given.port) and given.port:
        write(f"port {given.port} is in use: HTTP is on the next free one")
    for model in models:
        write(f"{model.config.name} is ready{_place(model)}")
    write(f"memory  about {size_text(need)}, loaded in {seconds}", _LABEL)
    write(f"URL     {record.url}   (gRPC {record.grpc}, metrics {record.metrics_url}/metrics)", _LABEL)
    if not models:
        return
    with_key, several = bool(given.api_key_file), len(models) > 1
    for model in models[:_MAX_REQUESTS]:
        if several:
            console.print(f"\n{model.config.name}:")
        if not _declares(model):
            write(_UNDECLARED, _LABEL)
            console.print(_METHOD)
            continue
        if not isinstance(model, GenerativeModel):
            write(f"inputs  {tensors(model.config.inputs)}\noutputs {tensors(model.config.outputs)}", _LABEL)
        console.print(f"\n{curl(record.url, model.config, api=_api(model), with_key=with_key)}")
        if takes_image(model.config):
            write("with an image of yours: cat photo.jpg instead of echo … | base64 -d")
    if len(models) > _MAX_REQUESTS:
        write(f"\n{record.url}/v2/models/NAME has the inputs of the other {len(models) - _MAX_REQUESTS} models")
    for model in filter(_declares, models[:1]):
        console.print(f"\n{python(record.url, model.config, api=_api(model), with_key=with_key)}")
    write("\nCtrl-C stops the server; conch ps shows it.", 0)


_TEXTS = {Task.EMBED: Api.EMBEDDINGS, Task.SCORE: Api.RERANK, Task.CLASSIFY: Api.CLASSIFY}


def device(model: ServedModel) -> str:
    """Return where the instances or the engine of a loaded model compute."""
    if isinstance(model, GenerativeModel) and model.engine.info.device:
        return model.engine.info.device
    groups = model.config.instance_groups
    gpus = sorted({gpu for group in groups if group.kind is InstanceKind.GPU for gpu in group.gpus})
    return f"GPU {', '.join(map(str, gpus))}" if gpus else "CPU"


def engine_devices(server: Server) -> str:
    """Return where the language models of a server compute."""
    return ", ".join(
        sorted({device(model) for model in server.inference.models() if isinstance(model, GenerativeModel)})
    )


def _declares(model: ServedModel) -> bool:
    return isinstance(model, GenerativeModel) or bool(model.config.inputs or model.config.outputs)


def _place(model: ServedModel) -> str:
    config = model.config
    if config.is_ensemble:
        return f", an ensemble of {', '.join(dict.fromkeys(step.model_name for step in config.ensemble_steps))}"
    return f" on {device(model)}, backend {config.backend}"


def _api(model: ServedModel) -> Api:
    if model.encoder is not None:
        return _TEXTS[model.encoder.model.task]
    if not isinstance(model, GenerativeModel):
        return _TEXTS[TextForm(model.config).task] if TOKENIZES in model.config.parameters else Api.INFER
    return Api.CHAT if model.engine.info.chat_template else Api.COMPLETION
