"""The models on this machine's disk: where they lie, and how they get there.

~/.local/share/conch/models/NAME/    a model's folder
~/.local/share/conch/models/NAME/.source    where it was pulled from
"""

import os
from argparse import Namespace
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from conch.base.errors import ConfigError, InvalidRequest
from conch.base.process.running_servers import temporary_folder, user_folder

if TYPE_CHECKING:
    from rich.console import Console

HUB = "hf://"
_SOURCE = ".source"


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


def source_of(folder: Path) -> str:
    """Return the URL that a model was pulled from, "" if it is unknown."""
    with suppress(FileNotFoundError):
        return (folder / _SOURCE).read_text(encoding="utf-8")
    return ""


def pulled_repository(url: str, given: Namespace) -> list[Path]:
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
    if folder.exists() and (source := source_of(folder)) not in (url, ""):
        raise ConfigError(f"the model '{folder.name}' on disk is {source}, not {url}: --name sets another name")
