"""How the loads of the server's start ended."""

from dataclasses import dataclass

_MAX_NAMES = 10


@dataclass(frozen=True, slots=True)
class StartReport:
    """`wanted` models were to be loaded; the `failed` ones were not, or not all of their versions."""

    wanted: int
    failed: tuple[str, ...] = ()

    def __str__(self) -> str:
        """How many failed, and which. Triton's "failed to load all models" stands only where all of them did."""
        names = ", ".join(f"'{name}'" for name in self.failed[:_MAX_NAMES])
        more = f" and {len(self.failed) - _MAX_NAMES} others" if len(self.failed) > _MAX_NAMES else ""
        if len(self.failed) == self.wanted:
            return f"failed to load all models: {names}{more}"
        return f"failed to load {len(self.failed)} of {self.wanted} models: {names}{more}"
