"""`requirements.txt` of a Python model, which the server does not install: a notice of what is missing."""

import re
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from conch.server.backends.base import ModelSource
from conch.server.backends.python.environment import PARAMETER

_NAME = "requirements.txt"
_MAX_BYTES = 65_536
_MAX_SHOWN = 8
# The name of a distribution at the start of a line; options (`-r`, `--hash`) and URLs have none.
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?=[\[<>=!~;@#,]|$)")


def missing_requirements(source: ModelSource) -> str:
    """Return a notice about packages that the server's environment lacks, "" if none is missing. Blocks.

    A model with an environment of another interpreter is not checked.
    """
    if source.config.parameters.get(PARAMETER):
        return ""
    for folder in (source.version_directory, source.directory):
        names = _names(folder / _NAME)
        if missing := [name for name in names if not _is_installed(name)]:
            shown = ", ".join(missing[:_MAX_SHOWN]) + (" …" if len(missing) > _MAX_SHOWN else "")
            return (
                f"model '{source.config.name}': the server does not install {folder / _NAME}, and its environment "
                f"lacks {shown}; run pip install -r there, or name an environment by the parameter {PARAMETER}"
            )
    return ""


def _names(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return []
    return [found[1] for line in text.splitlines() if (found := _REQUIREMENT.match(line))]


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except (PackageNotFoundError, ValueError):
        return False
    return True
