"""`conch pull`, `ls`, `show` and `rm`: the models on this machine's disk, which `conch run NAME` serves."""

from argparse import Namespace
from pathlib import Path

from rich.console import Console

from conch.clients.repository.add import add_model
from conch.clients.repository.hub_download import parse_location
from conch.clients.run.source import model_store


def pulled(given: Namespace) -> Path:
    """Return the folder of a model of the Hub, which is fetched if it is not on disk. Raises ConchError."""
    name = given.name or parse_location(given.model).name
    folder = model_store() / name
    if not folder.exists():
        wanted = Namespace(
            **{**vars(given), "source": given.model, "repository": str(model_store()), "link": False, "force": False}
        )
        add_model(wanted, Console(stderr=True, highlight=False, soft_wrap=True))
    return folder
