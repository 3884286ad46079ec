"""How the loads of the server's start ended."""

from dataclasses import dataclass

_MAX_NAMES = 10


@dataclass(frozen=True, slots=True)
class StartReport:
    """`wanted` models were to be loaded; the `failed` ones were not, or not all of their versions."""

    wanted: int
    failed: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Triton's sentence, how many, and which."""
        names = ", ".join(f"'{name}'" for name in self.failed[:_MAX_NAMES])
        more = f" and {len(self.failed) - _MAX_NAMES} others" if len(self.failed) > _MAX_NAMES else ""
        return f"failed to load all models: {len(self.failed)} of {self.wanted} failed: {names}{more}"
