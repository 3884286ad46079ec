"""Models that are not served any more: drained, then stopped, in the background of what goes on."""

import asyncio
from collections.abc import Callable, Iterable
from logging import getLogger
from time import monotonic

from conch.core.served_model import ServedModel
from conch.repository.store import ModelFiles

_log = getLogger(__name__)


class Retirement:
    """Everything on its way out."""

    def __init__(self) -> None:
        self._retiring: dict[asyncio.Task[None], list[ServedModel]] = {}

    def retire(self, old: Iterable[ServedModel], files: ModelFiles | None, gone: Callable[[int], None] | None) -> None:
        """Drain and stop versions of a model, then remove what only they needed and tell which are `gone`."""
        models = list(old)
        task = asyncio.create_task(_retire(models, files, gone))
        self._retiring[task] = models
        task.add_done_callback(self._retiring.pop)

    async def wait(self, name: str = "") -> None:
        """Return when all of it is done, or what there is now of the models of a name."""
        wanted = [task for task, models in self._retiring.items() if not name or _named(models, name)]
        await asyncio.gather(*wanted)

    def give_up(self) -> list[ServedModel]:
        """Wait for no answers any more. Returns what has not been stopped."""
        for task in self._retiring:
            task.cancel()
        return [model for models in self._retiring.values() for model in models]


def _named(models: list[ServedModel], name: str) -> bool:
    return any(model.config.name == name for model in models)


async def _retire(models: list[ServedModel], files: ModelFiles | None, gone: Callable[[int], None] | None) -> None:
    started = monotonic()
    await asyncio.gather(*(model.drain() for model in models))
    await asyncio.gather(*(model.stop() for model in models))
    if files is not None:
        await asyncio.to_thread(files.discard)
    for model in models:
        seconds = monotonic() - started
        _log.info("successfully unloaded '%s' version %d in %.3f s", model.id, model.version, seconds)
        if gone is not None:
            gone(model.version)
