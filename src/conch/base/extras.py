"""The command that installs an optional dependency of Conch, for messages that name a remedy."""

import json
import re
import shlex
from contextlib import suppress
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

DISTRIBUTION = "conch-server"
_WITHOUT_GPU = " (without a GPU: {} --extra-index-url https://download.pytorch.org/whl/cpu)"
_FROM_INDEX = re.compile(rf"pip install '{DISTRIBUTION}\[(\S+)\]'")


def install_command(extra: str) -> str:
    """Return the command that installs an extra of this installation of Conch.

    It names what pip was given for it: the folder of its sources, a wheel, or the name on the index, because the index
    may have nothing, or something else, under that name. PyTorch's package on the index brings CUDA, on any machine.
    """
    command = command_for(_origin(), extra)
    return command + (_WITHOUT_GPU.format(command) if extra == "pytorch" else "")


def for_this_installation(text: str) -> str:
    """Return a text of the documentation with the commands that install extras as `install_command` has them."""
    return _FROM_INDEX.sub(lambda match: install_command(match[1]), text)


@cache
def _origin() -> str:
    """Return what pip has recorded of where Conch came from, "" for an index."""
    from importlib.metadata import Distribution, PackageNotFoundError  # 20 ms, which only messages need

    try:
        return Distribution.from_name(DISTRIBUTION).read_text("direct_url.json") or ""
    except (PackageNotFoundError, OSError, ValueError):
        return ""


def command_for(origin: str, extra: str) -> str:
    """Return the command that installs an extra of an installation whose direct_url.json has the text `origin`.

    https://packaging.python.org/en/latest/specifications/direct-url/
    """
    name = f"{DISTRIBUTION}[{extra}]"
    with suppress(ValueError, KeyError, TypeError, AttributeError):  # none, or not of this format
        document = json.loads(origin)
        url = str(document["url"])
        parts = urlsplit(url)
        path = Path(unquote(parts.path))
        is_file = parts.scheme == "file" and path.exists()
        if "dir_info" in document and is_file:
            editable = "--editable " if document["dir_info"].get("editable") else ""
            return f"pip install {editable}{shlex.quote(f'{path}[{extra}]')}"
        if "vcs_info" in document:
            kind, commit = document["vcs_info"]["vcs"], document["vcs_info"]["commit_id"]
            return f"pip install {shlex.quote(f'{name} @ {kind}+{url}@{commit}')}"
        if "archive_info" in document and (is_file or parts.scheme == "https"):
            return f"pip install {shlex.quote(f'{name} @ {url}')}"
    return f"pip install '{name}'"
