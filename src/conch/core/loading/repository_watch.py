"""What has changed in the model repository since the last look at it."""

import asyncio
from collections.abc import Collection, Mapping

from conch.repository.namespaces import ModelId, Repositories
from conch.repository.watch import Changes, Fingerprint, changes, settled

# How long files must stay unchanged before polling treats them as complete.
_SETTLE_S = 2.0


class RepositoryWatch:
    """Remembers the last look. Looks run off the event loop."""

    def __init__(self, repositories: Repositories) -> None:
        self._repositories = repositories
        self._seen: Mapping[ModelId, Fingerprint] = {}

    async def begin(self) -> Mapping[ModelId, Fingerprint]:
        """Take the first look and return the models. Raises ConfigError, NotFound, Unavailable."""
        self._seen = await asyncio.to_thread(self._repositories.snapshot)
        return self._seen

    async def look(self, interval_s: float) -> Changes[ModelId]:
        """Look again and return the changes, without files that are still being written. Raises as `begin`."""
        now: Mapping[ModelId, Fingerprint] = await asyncio.to_thread(self._repositories.snapshot)
        if changes(self._seen, now):
            await asyncio.sleep(min(interval_s, _SETTLE_S))
            now = settled(self._seen, now, await asyncio.to_thread(self._repositories.snapshot))
        difference = changes(self._seen, now)
        self._seen = now
        return difference

    def forget(self, models: Collection[ModelId]) -> None:
        """Report these models as new at the next look."""
        self._seen = {model: seen for model, seen in self._seen.items() if model not in models}
