"""Models that are no longer served: drained, then stopped, in background tasks."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from logging import getLogger
from time import monotonic

from conch.server.core.served_model import ServedModel
from conch.server.repository.store import ModelFiles

_log = getLogger(__name__)


class Retirement:
    """The models that are being drained and stopped."""

    def __init__(self) -> None:
        self._retiring: dict[asyncio.Task[None], list[ServedModel]] = {}

    def retire(
        self, old: Iterable[ServedModel], files: ModelFiles | None, stopped: Callable[[Sequence[int]], None]
    ) -> None:
        """Drain and stop versions of a model, then discard their files and call `stopped` with these versions."""
        models = list(old)
        task = asyncio.create_task(_retire(models, files, stopped))
        self._retiring[task] = models
        task.add_done_callback(self._retiring.pop)

    async def wait(self, name: str = "") -> None:
        """Wait until all of them, or those of one name, have been stopped."""
        tasks = [task for task, models in self._retiring.items() if not name or _named(models, name)]
        await asyncio.gather(*tasks)

    def abandon(self) -> list[ServedModel]:
        """Cancel the wait for responses, and return the models that have not been stopped."""
        for task in self._retiring:
            task.cancel()
        return [model for models in self._retiring.values() for model in models]


def _named(models: list[ServedModel], name: str) -> bool:
    return any(model.config.name == name for model in models)


async def _retire(
    models: list[ServedModel], files: ModelFiles | None, stopped: Callable[[Sequence[int]], None]
) -> None:
    started = monotonic()
    await asyncio.gather(*(model.drain() for model in models))
    await asyncio.gather(*(model.stop() for model in models))
    if files is not None:
        await asyncio.to_thread(files.discard)
    for model in models:
        seconds = monotonic() - started
        _log.info("successfully unloaded '%s' version %d in %.3f s", model.id, model.version, seconds)
    stopped([model.version for model in models])
