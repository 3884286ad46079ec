"""`conch pull`, `ls`, `show` and `rm`: the models on this machine's disk, which `conch run NAME` serves.

`show` prints also models that servers of this user have loaded.
"""

import json
import os
import shutil
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import quote

from conch.base.command_line.command_parser import CommandParser
from conch.base.command_line.say import folded
from conch.base.control_characters import printable, printable_lines
from conch.base.errors import ConfigError, InvalidRequest, NotFound, Unavailable
from conch.base.process.running_servers import running_servers
from conch.base.suggestion import closest, did_you_mean
from conch.clients.run.command import exit_status, run_parser
from conch.clients.run.model_store import HUB, model_store, pulled, pulled_repository, source_of
from conch.clients.run.servers import LoadedModel, ServerWatch
from conch.machine.memory import size_text
from conch.server.repository.model_kinds import is_model_folder


def pull(arguments: Sequence[str]) -> int:
    """Fetch models to this machine's disk; return the exit status."""
    from conch.clients.repository.command import add_entry_flags

    parser = CommandParser("conch pull", description=_PULL)
    parser.add_argument("source", metavar="URL", help="hf://org/name, oci://image, or another remote repository")
    add_entry_flags(parser)
    parser.add_quiet_flag()
    given = parser.parse_args(arguments)
    return exit_status("pull", lambda: _pull(given), given)


def ls(arguments: Sequence[str]) -> int:
    """List the models on disk; return the exit status."""
    parser = CommandParser("conch ls", description=_LS)
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args(arguments)
    return exit_status("ls", lambda: _ls(as_json=given.json))


def show(arguments: Sequence[str]) -> int:
    """Print what is known of a model on disk or on running servers; return the exit status."""
    parser = CommandParser("conch show", description=_SHOW)
    parser.add_argument("model", metavar="X", help="a pulled or running model, or what conch run takes")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args(arguments)
    return exit_status("show", lambda: _show(given.model, as_json=given.json))


def rm(arguments: Sequence[str]) -> int:
    """Remove models from disk; return the exit status."""
    parser = CommandParser("conch rm", description=_RM)
    parser.add_argument("names", nargs="+", metavar="NAME", help="a pulled model")
    parser.add_quiet_flag()
    given = parser.parse_args(arguments)
    return exit_status("rm", lambda: max(map(_rm, given.names)), given)


def _pull(given: Namespace) -> int:
    url: str = given.source if "://" in given.source else f"{HUB}{given.source}"
    if url.startswith(HUB):
        folder = pulled(url, given, update=True)
        print(f"{folder}\nrun it: conch run {folder.name}")
        return 0
    for folder in pulled_repository(url, given):
        print(f"{folder}\nrun it: conch run {folder.name}")
    return 0


def _ls(*, as_json: bool) -> int:
    from conch.clients.repository.listing import list_models

    store = model_store()
    if not as_json and not any(map(is_model_folder, store.glob("[!.]*"))):
        print("no model is on disk; conch pull hf://org/name fetches one")
        return 0
    store.mkdir(parents=True, exist_ok=True)
    return list_models(Namespace(repository=str(store), json=as_json))


def _show(text: str, *, as_json: bool) -> int:
    from conch.clients.repository.listing import print_model
    from conch.machine.memory import size_text

    if text.startswith(HUB):
        raise InvalidRequest(f"{text} is not on disk: conch pull {text} fetches it")
    running, names = running_models(text)
    try:
        documents = _documents(text)
    except NotFound:
        if not running and (near := closest(text, names)):
            raise NotFound(f"'{text}' is not on disk and does not run; did you mean '{near}'?") from None
        if not running:
            raise
        documents = []
    if as_json:
        loaded = [model.document() for model in running]
        shown = [{**document, "running": loaded} for document in documents or [{"config": running[0].config}]]
        print(json.dumps(shown[0] if len(shown) == 1 else shown, indent=2))
        return 0
    for document in documents:
        print_model(document)
        print(f"memory: about {size_text(document['memory'])}")
    for model in running:
        model.print()
    return 0


def _documents(text: str) -> list[dict[str, Any]]:
    """Return what is known of the files of models. Raises NotFound."""
    from conch.clients.repository.listing import model_document
    from conch.clients.run.memory import model_memory
    from conch.clients.run.source import find_source

    documents: list[dict[str, Any]] = []
    for files in find_source(run_parser().parse_args([text])).models():
        try:
            documents.append({**model_document(files), "memory": model_memory(files)})
        finally:
            files.discard()
    return documents


def _rm(name: str) -> int:
    from conch.server.repository.store import check_name

    check_name(name)
    store = model_store()
    folder = store / name
    if not is_model_folder(folder):
        hint = did_you_mean(name, [path.name for path in store.glob("[!.]*")], "; conch ls lists the models on disk")
        raise NotFound(f"the model '{name}' is not on disk{hint}")
    for server in running_servers():
        if server.source in (name, source_of(folder)):
            raise ConfigError(f"'{name}' is served at {server.url}: conch stop {name} stops it first")
    kept = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and path.stat().st_nlink > 1)
    gone = folder.rename(store / f".removed-{name}-{os.getpid()}")  # at once: a server never sees a part of it
    shutil.rmtree(gone)
    print(f"removed '{name}'")
    if kept:
        print(f"{kept >> 20} MiB stay in the cache of the Hub (HF_HOME), which other programs share")
    return 0


_PULL = (
    "Fetch a model of the Hugging Face Hub, or the models of an OCI image or another remote repository, to this "
    "machine's disk, where conch run NAME finds them. An interrupted download continues where it ended; a second pull "
    "fetches what has changed."
)
_LS = "List the models on this machine's disk, which conch pull has fetched. conch run NAME serves one."
_SHOW = (
    "Show a model's configuration, its files and how much memory it takes; of one that is running: backend, device, "
    "memory, context length, inputs, outputs, parameters and chat template."
)
_RM = "Remove models from this machine's disk."


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
        lines = {
            "version": loaded.version,
            "backend": loaded.backend,
            "device": loaded.device,
            "memory": "" if loaded.memory is None else size_text(loaded.memory),
            "context": f"{loaded.context_length} tokens" if loaded.context_length else "",
            # Those of all language models are the same.
            "inputs": "" if loaded.context_length else _listed(shown["inputs"]) or "none declared",
            "outputs": "" if loaded.context_length else _listed(shown["outputs"]) or "none declared",
            "parameters": ", ".join(f"{name}={value}" for name, value in shown["parameters"].items()),
            "degraded": ", ".join(loaded.degraded),
        }

        def write(line: str) -> None:
            print(folded(line, sys.stdout, indent=13))

        write(printable(f"{loaded.model} at {loaded.url} (pid {loaded.pid}) is {loaded.state}"))
        for title, text in lines.items():
            if text:
                write(f"  {title:<10} {printable(text)}")
        if self.template:
            print("  template")
            for line in printable_lines(self.template).splitlines():
                print(f"    {line}")


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
