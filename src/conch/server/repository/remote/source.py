"""The interface between a mirror and the kinds of remote repositories."""

from collections.abc import Sequence
from typing import Protocol

from conch.base.errors import Unavailable
from conch.server.repository.remote.listing import Contents, RemoteFile


class ChangedMeanwhile(Unavailable):
    """A listed file has changed or disappeared: the repository must be listed again."""

    def __init__(self, where: str) -> None:
        super().__init__(f"{where} was changed while it was being fetched")


class RemoteSource(Protocol):
    """A remote repository. Methods block, and are called by several threads."""

    def contents(self, model: str | None = None) -> Contents:
        """List the whole repository or, where that is less work, one model.

        Raises ConfigError, NotFound, Unavailable (Unreachable if the repository does not answer).
        """

    def fetch(self, model: str, entries: Sequence[RemoteFile]) -> None:
        """Fetch these files of a model into the cache. Raises ChangedMeanwhile, Unavailable."""
