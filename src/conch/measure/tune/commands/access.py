"""The server and the state directory that the flags of `conch tune` name, and its messages."""

import sys
from argparse import Namespace
from pathlib import Path

from conch.measure.tune.commands.flags import DEFAULT_URL
from conch.measure.tune.repository_client import ServerAccess
from conch.measure.tune.state.folder import default_state_directory


def server_access(given: Namespace) -> ServerAccess:
    """Return URL, key and certificates; a URL without a scheme is HTTP."""
    url = given.url or DEFAULT_URL
    key_file = None if given.api_key_file is None else str(Path(given.api_key_file).resolve())
    return ServerAccess(url if "://" in url else f"http://{url}", key_file, given.ca_file)


def state_directory(given: Namespace) -> Path:
    """Return the folder for the state of all models."""
    return given.state_dir or default_state_directory()


def say(text: str) -> None:
    """Print a line on stderr."""
    print(text, file=sys.stderr, flush=True)
