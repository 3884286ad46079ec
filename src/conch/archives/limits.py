"""How far an archive may expand."""

from dataclasses import dataclass

from conch.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """How far an archive may grow. Files of weights hardly compress, so a high ratio of much is an attack."""

    total_bytes: int = 1 << 40
    ratio: int = 100
    ratio_from_bytes: int = 1 << 30  # below, the ratio does not matter
    entries: int = 200_000


class ArchiveBudget:
    """Counts what an archive of `packed` bytes expands to. `where` is for messages."""

    def __init__(self, limits: ArchiveLimits, packed: int, where: str) -> None:
        self._limits = limits
        self._most = min(limits.total_bytes, max(limits.ratio_from_bytes, limits.ratio * packed))
        self._where = where
        self._bytes = self._entries = 0

    def count(self) -> None:
        """Count an entry. Raises ConfigError beyond the limit."""
        self._entries += 1
        if self._entries > self._limits.entries:
            raise ConfigError(f"{self._where}: more than {self._limits.entries} files")

    def spend(self, count: int) -> None:
        """Count bytes of contents. Raises ConfigError beyond the limit."""
        self._bytes += count
        if self._bytes > self._most:
            raise ConfigError(
                f"{self._where}: grows to more than {self._most} bytes, as an archive does that is meant to fill a disk"
            )
