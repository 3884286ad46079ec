"""`conch pull`, `ls`, `show` and `rm`: the models on this machine's disk, which `conch run NAME` serves."""

import json
import os
import shutil
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from conch.base.command_line.command_parser import CommandParser
from conch.base.errors import ConfigError, InvalidRequest, NotFound
from conch.base.process.running_servers import running_servers
from conch.base.suggestion import closest, did_you_mean
from conch.clients.run.command import exit_status, run_parser
from conch.clients.run.model_store import HUB, model_store, pulled, pulled_repository, source_of
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
    from conch.clients.run.running_model import running_models
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
