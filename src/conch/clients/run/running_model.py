"""What `conch show` prints of a model that servers of this user have loaded."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import quote

from rich.console import Console

from conch.base.control_characters import printable, printable_lines
from conch.base.errors import Unavailable
from conch.clients.run.servers import LoadedModel, ServerWatch
from conch.machine.memory import size_text


@dataclass(frozen=True, slots=True)
class RunningModel:
    """A loaded model, its configuration as the server has it, and the chat template of a language model or ""."""

    loaded: LoadedModel
    config: Mapping[str, Any]
    template: str

    def document(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        parameters = self.config.get("parameters") or {}
        return {
            **asdict(self.loaded),
            "max_batch_size": self.config.get("max_batch_size", 0),
            "inputs": [_tensor(spec) for spec in self.config.get("input") or ()],
            "outputs": [_tensor(spec) for spec in self.config.get("output") or ()],
            "parameters": {name: str(value.get("string_value", "")) for name, value in parameters.items()},
            "template": self.template,
        }

    def print(self) -> None:
        """Print a block of lines."""
        shown, loaded = self.document(), self.loaded
        console = Console(highlight=False, markup=False, soft_wrap=True)
        lines = {
            "version": loaded.version,
            "backend": loaded.backend,
            "device": loaded.device,
            "memory": "" if loaded.memory is None else size_text(loaded.memory),
            "context": f"{loaded.context_length} tokens" if loaded.context_length else "",
            # Those of all language models are the same.
            "inputs": "" if loaded.context_length else _listed(shown["inputs"]),
            "outputs": "" if loaded.context_length else _listed(shown["outputs"]),
            "parameters": ", ".join(f"{name}={value}" for name, value in shown["parameters"].items()),
            "degraded": ", ".join(loaded.degraded),
        }
        console.print(printable(f"{loaded.model} at {loaded.url} (pid {loaded.pid}) is {loaded.state}"))
        for title, text in lines.items():
            if text:
                console.print(f"  {title:<10} {printable(text)}")
        if self.template:
            console.print("  template")
            for line in printable_lines(self.template).splitlines():
                console.print(f"    {line}")


def running_models(name: str) -> tuple[list[RunningModel], list[str]]:
    """Return the loaded versions of this name, those of the oldest server first, and the names of all models."""
    watch = ServerWatch()
    loaded = [model for model in watch.look() if model.version]  # not servers that do not answer
    readers = {server.pid: reader for server, reader in watch.readers.items()}
    models: list[RunningModel] = []
    for model in loaded:
        if model.model != name:
            continue
        reader, template = readers[model.pid], ""
        with suppress(Unavailable, KeyError, TypeError):  # of a model that makes no text
            template = str(reader.ask("GET", f"/v1/models/{quote(name, safe='')}")["chat_template"])
        models.append(RunningModel(model, reader.config(model.model, model.version), template))
    return models, sorted({model.model for model in loaded})


def _tensor(spec: Mapping[str, Any]) -> dict[str, Any]:
    datatype = str(spec.get("data_type", "")).removeprefix("TYPE_")
    return {
        "name": spec.get("name", ""),
        "datatype": "BYTES" if datatype == "STRING" else datatype,
        "dims": [int(size) for size in spec.get("dims") or ()],  # 64-bit integers may be texts in JSON
    }


def _listed(tensors: list[dict[str, Any]]) -> str:
    return ", ".join(f"{spec['name']} {spec['datatype']}[{','.join(map(str, spec['dims']))}]" for spec in tensors)
