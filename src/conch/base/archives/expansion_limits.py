"""Limits on the expansion of archives, against zip bombs."""

from dataclasses import dataclass

from conch.base.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """Limits for one archive. Weights hardly compress, so a large archive with a high ratio is an attack."""

    total_bytes: int = 1 << 40
    ratio: int = 100
    ratio_from_bytes: int = 1 << 30  # of contents; below, the ratio is not checked
    entries: int = 200_000


class ArchiveBudget:
    """Count entries and bytes of an archive of `packed` bytes. `where` is for messages."""

    def __init__(self, limits: ArchiveLimits, packed: int, where: str) -> None:
        self._limits = limits
        self._max_bytes = min(limits.total_bytes, max(limits.ratio_from_bytes, limits.ratio * packed))
        self._where = where
        self._bytes = self._entries = 0

    def count(self) -> None:
        """Count an entry. Raises ConfigError above the limit."""
        self._entries += 1
        if self._entries > self._limits.entries:
            raise ConfigError(f"{self._where}: more than {self._limits.entries} files")

    def spend(self, count: int) -> None:
        """Count bytes of contents. Raises ConfigError above the limit."""
        self._bytes += count
        if self._bytes > self._max_bytes:
            raise ConfigError(
                f"{self._where}: expands to more than {self._max_bytes} bytes, the limit against archives that are "
                "made to fill a disk"
            )
