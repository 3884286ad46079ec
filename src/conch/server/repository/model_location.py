"""Where the files of a model lie, and what a repository answers about its models."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from conch.server.repository.watch import Fingerprint


@dataclass(frozen=True, slots=True)
class ModelLocation:
    """Where a model's files lie. `fingerprint` is that of the root's files when `directory` was found or created."""

    directory: Path
    fingerprint: Fingerprint
    temporary: bool = False  # for one load; removed when the model is unloaded
    renamed: bool = False  # the name in its configuration does not count
    linked: tuple[Path, ...] = ()  # files that links in a temporary directory name


class Root(Protocol):
    """One `--model-repository`. `str(root)` contains no secrets."""

    def names(self) -> list[str]:
        """Return the names of the models that are known without waiting. Raises ConfigError."""

    def scan(self) -> Mapping[str, Fingerprint]:
        """Scan the root and return the fingerprints of all models. Raises ConfigError, Unavailable."""

    def fingerprint(self, name: str) -> Fingerprint:
        """Scan one model and return its fingerprint, () if it does not exist. Raises Unavailable."""

    def check_reachable(self, name: str) -> None:
        """Raise Unavailable with the cause if a model is served from the cache because the root does not answer."""

    def has(self, name: str) -> bool:
        """Whether there is a model of this name. Raises Unavailable."""

    def find(self, name: str) -> ModelLocation | None:
        """Return where the files of a model lie, None if it does not exist. Raises ConfigError, Unavailable."""
