"""What a mirror wants of the place where a repository is."""

from collections.abc import Sequence
from typing import Protocol

from conch.errors import Unavailable
from conch.repository.remote.listing import Contents, RemoteFile


class ChangedMeanwhile(Unavailable):
    """What was listed is not there any more as it was: it has to be listed again."""

    def __init__(self, where: str) -> None:
        super().__init__(f"{where} was changed while it was being fetched")


class Unreachable(Unavailable):
    """The place gives no answer, or one that it is out of order. One that refuses is reached."""


class RemoteSource(Protocol):
    """A repository elsewhere. Methods block, and are called by several threads."""

    def contents(self, model: str | None = None) -> Contents:
        """Look what there is; where that is less work, at one model only.

        Raises ConfigError, NotFound, Unavailable, and among these Unreachable.
        """

    def fetch(self, model: str, entries: Sequence[RemoteFile]) -> None:
        """Bring these objects of a model into the cache. Raises ChangedMeanwhile, Unavailable."""
