"""Models come and go: load, unload, reload and poll, without losing a request.

A reload brings the new version up first, publishes it in one step, and only then drains and stops the old one. Loads of
one model follow each other; loads of different models run side by side. Nothing here blocks the event loop.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from logging import getLogger
from weakref import WeakValueDictionary

from conch.core.builder import Built, ModelBuilder
from conch.core.catalog import UNLOADED, Catalog, VersionState
from conch.core.ensemble import EnsembleModel
from conch.core.ensembles import Ensembles
from conch.core.load_errors import load_error, load_failure, raise_failures
from conch.core.load_waits import LoadWaits
from conch.core.repository_index import IndexEntry, index_rows
from conch.core.retirement import Retirement
from conch.errors import Code, ConchError, InvalidRequest, ModelLoadError, NotFound, Unavailable
from conch.model_config import EnsembleStep
from conch.repository.namespaces import ModelId, Repositories
from conch.repository.override import Override
from conch.repository.store import ModelFiles
from conch.repository.watch import Changes, Fingerprint, changes, settled, sources

_log = getLogger(__name__)

# How long files must have kept still before polling takes them for complete.
_SETTLE_S = 2.0
# How often a load begins anew because the model's files changed meanwhile.
_ATTEMPTS = 3
ALL_MODELS = "*"


class ModelControl:
    """Keeps the catalog true to the repository, by order or by polling.

    `explicit` is Triton's control mode EXPLICIT, the only one in which clients may load and unload.
    """

    def __init__(
        self,
        repositories: Repositories,
        builder: ModelBuilder,
        catalog: Catalog,
        *,
        explicit: bool,
        load_threads: int = 4,
        load_retries: int = 0,
    ) -> None:
        self._repositories = repositories
        self._builder = builder
        self._catalog = catalog
        self._ensembles = Ensembles(catalog, builder)
        self.explicit = explicit
        self._load_retries = load_retries
        self._slots = asyncio.Semaphore(load_threads)
        self._locks: WeakValueDictionary[ModelId, asyncio.Lock] = WeakValueDictionary()
        self._waits = LoadWaits()
        self._loaded: dict[ModelId, ModelFiles] = {}
        self._seen: Mapping[ModelId, Fingerprint] = {}
        self._retirement = Retirement()

    # ── what clients may ask for ──

    def index(self, ready_only: bool) -> list[IndexEntry]:
        """Return every model of the repository and every version that was asked for, by name and version."""
        rows = index_rows(self._catalog, self._ids())
        return [row for row in rows if not ready_only or row.state == VersionState.READY.value]

    async def load(
        self, name: str, config: str | None, files: Mapping[str, bytes], waiting: ModelId | None = None
    ) -> None:
        """Load or reload a model; with `config` (JSON) and `files` ("<version>/<path>") in place of what lies on disk.

        Of several models of that name, each in a namespace of its own, all are meant, as in Triton. `waiting` is the
        model whose own load waits for this one.
        Raises Unavailable outside explicit mode, or if the repository of a served model gives no answer, ModelLoadError
        with the cause. A model that was served before and
        fails to reload is served on as it was.
        """
        self._require_explicit()
        override = Override(config, files) if config is not None or files else None
        models = await self._named(name)
        ordered = waiting is None
        async with self._waited_for(waiting, models):
            loads = (self._load(model, override, ordered=ordered) for model in models)
            results = await asyncio.gather(*loads, return_exceptions=True)
        raise_failures(results)

    async def unload(self, name: str, unload_dependents: bool, waiting: ModelId | None = None) -> None:
        """Take a model out of service; what it has admitted is still answered. An unknown model is no error.

        With `unload_dependents` an ensemble takes along the models of its steps that no other ensemble uses. `waiting`
        is the model whose load waits for this. Raises Unavailable outside explicit mode.
        """
        self._require_explicit()
        models = [model for model in {*self._loaded, *self._locks.keys()} if model.name == name]
        async with self._waited_for(waiting, models):
            await asyncio.gather(*(self._unload(model, with_steps=unload_dependents) for model in models))

    async def retired(self, name: str) -> None:
        """Return when nothing is left of what was unloaded under this name."""
        await self._retirement.wait(name)

    # ── what the server does by itself ──

    async def load_at_start(self, names: Iterable[str]) -> None:
        """Load these models, `*` being all. Failures are written into the catalog and the log."""
        # Before anything is read, so that what changes in the meantime shows up at the first poll.
        self._seen = await asyncio.to_thread(self._repositories.snapshot)
        wanted: dict[ModelId, None] = {}
        for name in names:
            try:
                wanted |= dict.fromkeys(self._seen if name == ALL_MODELS else await self._named(name))
            except NotFound as error:
                _log.error("%s", error)
        await self._try_loads(wanted)

    async def poll(self, interval_s: float) -> None:
        """Look at the repository every so often and load, reload and unload what has changed. Runs until cancelled.

        While it cannot be looked at, everything stays as it is, and that is logged once.
        """
        complaint = ""
        while True:
            await asyncio.sleep(interval_s)
            try:
                now = await self._look(min(interval_s, _SETTLE_S))
            except Exception as error:
                if complaint != str(error):
                    complaint = str(error)
                    _log.error("polling the model repository: %s", load_error(error))
                continue
            complaint = ""
            await self._follow(changes(self._seen, now), now)

    async def _follow(self, difference: Changes[ModelId], now: Mapping[ModelId, Fingerprint]) -> None:
        self._seen = now
        await self._try_loads((*difference.added, *difference.changed))
        await asyncio.gather(*(self._unload(model) for model in difference.removed))
        for model in difference.removed:
            self._catalog.forget(model)

    async def stop(self) -> None:
        """Drain and stop every model. The frontends have stopped sending requests."""
        await asyncio.gather(*(self._unload(model) for model in list(self._loaded)))
        await self._retirement.wait()

    async def abandon(self) -> None:
        """End every model without waiting for answers: the time to stop gracefully is over."""
        await asyncio.gather(*(model.kill() for model in [*self._catalog, *self._retirement.give_up()]))

    # ── the steps ──

    async def _look(self, settle_s: float) -> Mapping[ModelId, Fingerprint]:
        """Return the state of the repository, without what somebody is just writing."""
        now = await asyncio.to_thread(self._repositories.snapshot)
        if not changes(self._seen, now):
            return now
        await asyncio.sleep(settle_s)
        return settled(self._seen, now, await asyncio.to_thread(self._repositories.snapshot))

    def _require_explicit(self) -> None:
        if not self.explicit:
            raise Unavailable("explicit model load / unload is not allowed if polling is enabled")

    def _ids(self) -> list[ModelId]:
        try:
            return self._repositories.ids()
        except ConchError as error:
            _log.error("%s", error)
            return []

    async def _named(self, name: str) -> list[ModelId]:
        """Return all models of a name. Raises NotFound."""
        if not self._repositories.namespaced:  # at once: of orders for one model, the last counts
            return self._repositories.named(name)
        try:
            return await asyncio.to_thread(self._repositories.named, name)
        except NotFound as error:
            raise _not_polled(name, error) from error

    async def _try_loads(self, models: Iterable[ModelId]) -> None:
        """Load models and log what fails. What failed for lack of something that may come back is due again."""
        wanted = list(models)
        passing = await asyncio.gather(*map(self._try_load, wanted))
        due = {model for model, again in zip(wanted, passing, strict=True) if again}
        self._seen = {model: seen for model, seen in self._seen.items() if model not in due}

    async def _try_load(self, model: ModelId) -> bool:
        """Load a model; return whether it failed for a reason that may pass."""
        try:
            await self._load(model, None)
        except ConchError as error:
            _log.error("%s", error)
            return error.code is Code.UNAVAILABLE
        except Exception:  # of one model: the others are still to be looked after
            _log.exception("loading model '%s' failed unexpectedly", model)
        return False

    @asynccontextmanager
    async def _waited_for(self, waiting: ModelId | None, models: Iterable[ModelId]) -> AsyncIterator[None]:
        """Act on models inside of the block while a load waits for that. Raises ModelLoadError if for ever."""
        if waiting is None:
            yield
            return
        with ExitStack() as waits:
            for model in models:
                waits.enter_context(self._waits.waiting(waiting, model))
            self._slots.release()  # who waits loads nothing, and may wait for one who wants to
            try:
                yield
            finally:
                await self._slots.acquire()

    async def _load(self, model: ModelId, override: Override | None, *, ordered: bool = False) -> None:
        """Load a model and, before it, the models of its steps; `ordered` by a client."""
        async with self._locks.setdefault(model, asyncio.Lock()):
            if override is None and await self._unchanged(model):
                if ordered:  # what is new was asked for, and that nobody can tell is no reason to say it is done
                    self._repositories.check_answers(model)
                return
            for _ in range(_ATTEMPTS):
                files = await self._read(model, override)
                try:
                    for step in files.config.ensemble_steps:
                        await self._load_step(model, step)
                except ModelLoadError as circle:
                    raise self._not_loaded(model, files, circle) from circle
                if await self._rearranged(model, files) or await self._replace(model, files):
                    return
            kept_changing = ModelLoadError(f"the files of model '{model}' kept changing while it was being loaded")
            raise self._not_loaded(model, files, kept_changing)

    async def _read(self, model: ModelId, override: Override | None) -> ModelFiles:
        try:
            return await asyncio.to_thread(self._repositories.read, model, override)
        except NotFound as error:
            raise _not_polled(model.name, error) from error
        except Exception as error:
            raise self._unreadable(model, override, load_error(error)) from error

    async def _load_step(self, ensemble: ModelId, step: EnsembleStep) -> None:
        """See to it that a step's model is there. If it is not, the check of the ensemble will say so.

        Raises ModelLoadError if the ensemble can only wait for itself.
        """
        try:
            model = await asyncio.to_thread(
                self._repositories.step, step.model_name, step.model_namespace, ensemble.namespace
            )
        except ConchError as error:
            _log.error("%s", error)
            return
        if not self._catalog.served(model):
            with self._waits.waiting(ensemble, model):
                try:
                    await self._load(model, None)
                except ConchError as error:
                    _log.error("%s", error)

    async def _rearranged(self, model: ModelId, files: ModelFiles) -> bool:
        """Start and stop instances of what is served, if that is all that the files want; whether it was."""
        old, served = self._loaded.get(model), self._catalog.served(model)
        if old is None or not served:
            return False
        try:
            async with self._slots:
                done = await self._builder.rearrange(files, old, served)
        except Exception as error:
            raise load_failure(model, dict.fromkeys(served, load_error(error))) from error
        if done:
            self._loaded[model] = files
            _log.info("rearranged the instances of '%s' version %s", model, ", ".join(map(str, served)))
        return done

    async def _replace(self, model: ModelId, files: ModelFiles) -> bool:
        """Bring the model up from its files and put it in the place of what is served now.

        Returns whether that is how it stands: False if the files were changed meanwhile. Then nothing is served of what
        may be half from the old ones and half from the new ones.
        """
        before = self._catalog.served(model)
        for version in files.versions_on_disk:
            if version not in before:
                self._catalog.note(model, version, VersionState.LOADING)
        built = await self._build(files)
        for _ in range(self._load_retries):
            if not built.failures:
                break
            await asyncio.gather(*(served.stop() for served in built.served.values()))
            built = await self._build(files)
        if not files.temporary and await self._has_changed(model, files):
            await self._discard(built, files)
            return False
        for version in files.versions_on_disk:
            if version not in before and version not in built.served:
                self._catalog.note(model, version, VersionState.UNAVAILABLE, UNLOADED)
        for version, failure in built.failures.items():
            if version not in before:
                self._catalog.note(model, version, VersionState.UNAVAILABLE, failure.message)
        if built.failures and (before or not built.served):
            await self._discard(built, files)
        elif built.served:
            self._publish(model, built, files)
        if built.failures:
            raise load_failure(model, built.failures)
        return True

    async def _build(self, files: ModelFiles) -> Built:
        try:
            async with self._slots:
                return await self._builder.build(files, await self._builder.configure(files))
        except Exception as error:
            return Built(failures=dict.fromkeys(files.versions_on_disk or (1,), load_error(error)))

    def _publish(self, model: ModelId, built: Built, files: ModelFiles) -> None:
        previous = self._loaded.get(model)
        self._loaded[model] = files
        newest = built.served[max(built.served)]
        old = self._catalog.publish(model, built.served)
        for served in old:
            heirs = {served.version, newest.version if served is old[-1] else served.version}
            for version in heirs:
                built.served.get(version, newest).take_over(served)
            if served.version not in built.served:
                self._catalog.note(model, served.version, VersionState.UNAVAILABLE, UNLOADED)
        self._retirement.retire(old, previous, None)
        self._ensembles.check_users(model)
        _log.info("successfully loaded '%s' version %s", model, ", ".join(map(str, sorted(built.served))))

    async def _unload(self, model: ModelId, *, with_steps: bool = False) -> None:
        async with self._locks.setdefault(model, asyncio.Lock()):
            loaded = self._loaded.pop(model, None)
            served = self._catalog.publish(model, {})
            for version, record in self._catalog.records().get(model, {}).items():
                if record.state is not VersionState.UNAVAILABLE:
                    self._catalog.note(model, version, VersionState.UNLOADING)
            self._retirement.retire(served, loaded, partial(self._note_unloaded, model))
        if with_steps and loaded is not None:
            for step in {self._ensembles.meant(model.namespace, step) for step in loaded.config.ensemble_steps}:
                if step is not None and not self._ensembles.use(step):
                    await self._unload(step, with_steps=True)

    def _note_unloaded(self, model: ModelId, version: int) -> None:
        record = self._catalog.records().get(model, {}).get(version)
        # It may have been loaded again, or forgotten, in the meantime.
        if record is not None and record.state is VersionState.UNLOADING:
            self._catalog.note(model, version, VersionState.UNAVAILABLE, UNLOADED)

    async def _discard(self, built: Built, files: ModelFiles) -> None:
        await asyncio.gather(*(served.stop() for served in built.served.values()))
        await asyncio.to_thread(files.discard)

    async def _unchanged(self, model: ModelId) -> bool:
        """Whether a model is served from the files that are there now; an override stays in force while it is."""
        loaded = self._loaded.get(model)
        served = self._catalog.served(model)
        if loaded is None or not served:
            return False
        if any(isinstance(one, EnsembleModel) and one.misfit for one in served.values()):
            return False
        return loaded.fingerprint == await asyncio.to_thread(self._repositories.fingerprint, model)

    async def _has_changed(self, model: ModelId, files: ModelFiles) -> bool:
        """Whether what the model is made from is not what it was when its configuration was read."""
        now = await asyncio.to_thread(self._repositories.fingerprint, model)
        return sources(now) != sources(files.fingerprint)

    def _unreadable(self, model: ModelId, override: Override | None, error: ConchError) -> ConchError:
        """Name the cause of a configuration that cannot be read: the client's who sent it, else the repository's."""
        text = f"failed to load '{model}', failed to poll from model repository: {error.message}"
        unavailable = error.code is Code.UNAVAILABLE
        if override is not None and not unavailable:
            return InvalidRequest(text)
        if not self._catalog.served(model):
            self._catalog.note(model, 1, VersionState.UNAVAILABLE, error.message)
        return ModelLoadError(text, Code.UNAVAILABLE if unavailable else None)

    def _not_loaded(self, model: ModelId, files: ModelFiles, error: ModelLoadError) -> ModelLoadError:
        for version in files.versions_on_disk:
            if version not in self._catalog.served(model):
                self._catalog.note(model, version, VersionState.UNAVAILABLE, error.message)
        return error


def _not_polled(name: str, error: NotFound) -> NotFound:
    return NotFound(f"failed to load '{name}', failed to poll from model repository: {error}")
