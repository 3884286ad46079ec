"""`conch pull`, `ls`, `show` and `rm`: the models on this machine's disk, which `conch run NAME` serves.

~/.local/share/conch/models/NAME/    a model's folder
~/.local/share/conch/models/NAME/.source    where it was pulled from
"""

import os
import shutil
from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from conch.base.command_line.command_parser import CommandParser
from conch.base.errors import ConfigError, InvalidRequest, NotFound
from conch.base.process.running_servers import running_servers, temporary_folder, user_folder
from conch.base.suggestion import did_you_mean
from conch.clients.run.command import exit_status, run_parser
from conch.server.repository.model_kinds import is_model_folder

if TYPE_CHECKING:
    from rich.console import Console

HUB = "hf://"
_SOURCE = ".source"


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
    """Print a model's configuration, files and estimated memory; return the exit status."""
    parser = CommandParser("conch show", description=_SHOW)
    parser.add_argument("model", metavar="X", help="a pulled model, or a file or folder as conch run takes them")
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


def model_store() -> Path:
    """Return the repository of pulled models: in the user's data, or a temporary one if that cannot be written."""
    folder = user_folder("XDG_DATA_HOME", ".local/share") / "models"
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    return folder if existing.is_dir() and os.access(existing, os.W_OK) else temporary_folder() / "models"


def pulled(url: str, given: Namespace, *, update: bool = False) -> Path:
    """Return the folder of a model of the Hub, fetched if it is not on disk, or for an update. Raises ConchError.

    An interrupted download continues where it ended. `given` has the flags of `add_entry_flags`.
    """
    from conch.clients.repository.add import add_model, hub_downloader

    name: str = given.name or hub_downloader().parse_location(url).name
    folder = model_store() / name
    _check_source(folder, url)
    if folder.exists() and not update:
        return folder
    fields = {**vars(given), "source": url, "repository": str(model_store()), "link": False, "force": update}
    add_model(Namespace(**fields), _console(given))
    (folder / _SOURCE).write_text(url, encoding="utf-8")
    return folder


def _source(folder: Path) -> str:
    """Return the URL that a model was pulled from, "" if it is unknown."""
    with suppress(FileNotFoundError):
        return (folder / _SOURCE).read_text(encoding="utf-8")
    return ""


def _pull(given: Namespace) -> int:
    url: str = given.source if "://" in given.source else f"{HUB}{given.source}"
    if url.startswith(HUB):
        folder = pulled(url, given, update=True)
        print(f"{folder}\nrun it: conch run {folder.name}")
        return 0
    for folder in _pulled_repository(url, given):
        print(f"{folder}\nrun it: conch run {folder.name}")
    return 0


def _pulled_repository(url: str, given: Namespace) -> list[Path]:
    """Fetch the models of an image or a remote repository; return their folders. Raises ConchError."""
    from conch.clients.repository.add import add_folder
    from conch.clients.repository.command import repo_parser
    from conch.clients.repository.transfer import fetched

    console, store = _console(given), model_store()
    with fetched(repo_parser().parse_args(["pull", url, str(store), "--retry-secs=0"]), console) as (folders, _):
        if given.name and len(folders) > 1:
            raise InvalidRequest(f"--name is for one model; {url} has {len(folders)}: {', '.join(folders)}")
        for own_name, source in folders.items():
            name = given.name or own_name
            _check_source(store / name, url)
            fields = {**vars(given), "source": str(source), "name": name, "repository": str(store)}
            add_folder(Namespace(**fields, link=False, force=True), console)
            (store / name / _SOURCE).write_text(url, encoding="utf-8")
    return [store / (given.name or name) for name in folders]


def _console(given: Namespace) -> "Console":
    """Return where progress is shown; `conch run` has no --quiet."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True, quiet=getattr(given, "quiet", False))


def _check_source(folder: Path, url: str) -> None:
    """Raise ConfigError if a model on disk was pulled from elsewhere."""
    if folder.exists() and (source := _source(folder)) not in (url, ""):
        raise ConfigError(f"the model '{folder.name}' on disk is {source}, not {url}: --name sets another name")


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
    from conch.clients.run.memory import model_memory
    from conch.clients.run.source import find_source
    from conch.machine.memory import size_text

    if text.startswith(HUB):
        raise InvalidRequest(f"{text} is not on disk: conch pull {text} fetches it")
    source = find_source(run_parser().parse_args([text]))
    for files in source.models():
        try:
            memory = model_memory(files)
            print_model(files, as_json=as_json, more={"memory": memory if as_json else f"about {size_text(memory)}"})
        finally:
            files.discard()
    return 0


def _rm(name: str) -> int:
    from conch.server.repository.store import check_name

    check_name(name)
    store = model_store()
    folder = store / name
    if not is_model_folder(folder):
        hint = did_you_mean(name, [path.name for path in store.glob("[!.]*")], "; conch ls lists the models on disk")
        raise NotFound(f"the model '{name}' is not on disk{hint}")
    for server in running_servers():
        if server.source in (name, _source(folder)):
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
_SHOW = "Show a model's configuration, its files and how much memory it takes."
_RM = "Remove models from this machine's disk."
