"""Load, reload, unload and poll models without losing a request.

A reload starts the new version first, publishes it atomically, and only then drains and stops the old one. Loads of one
model are serialized; loads of different models run concurrently. Nothing here blocks the event loop.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from logging import getLogger
from time import monotonic_ns
from typing import TypeAlias
from weakref import WeakValueDictionary

from conch.base.errors import Code, ConchError, InvalidRequest, ModelLoadError, NotFound, Unavailable
from conch.domain.model_config import EnsembleStep
from conch.server.core.catalog import UNLOADED, Catalog, IndexEntry, VersionState, index_rows
from conch.server.core.ensembles.ensemble_model import EnsembleModel
from conch.server.core.ensembles.nesting import MAX_ENSEMBLE_DEPTH
from conch.server.core.loading.builder import ModelBuilder
from conch.server.core.loading.load_outcomes import LoadLog, load_error, logged, not_polled, raise_failures
from conch.server.core.loading.loader import EnsembleLinks, Loader, Retirement
from conch.server.options.server_options import ServerOptions
from conch.server.repository.model_location import Root
from conch.server.repository.namespaces import ModelId, Repositories
from conch.server.repository.override import Override
from conch.server.repository.store import ModelFiles
from conch.server.repository.watch import Changes, Fingerprint, changes, settled

_log = getLogger(__name__)

# Attempts at one load while its files change.
_MAX_ATTEMPTS = 3
# How long files must stay unchanged before polling treats them as complete.
_SETTLE_S = 2.0
# Uploaded and removed models that the index keeps although they are not served. There may be any number of them.
MAX_UPLOADED_MODELS = 1000
_MAX_REPORTED_NAMES = 10
_MAX_NAME_CHARACTERS = 4096
ALL_MODELS = "*"
# The models that one round of loads has attempted, each with its error if it failed.
_Tried: TypeAlias = dict[ModelId, ConchError | None]


@dataclass(frozen=True, slots=True)
class StartReport:
    """The result of the loads at start: `requested` is the number of models, `failed` those without all versions."""

    requested: int
    failed: tuple[str, ...] = ()

    def __str__(self) -> str:
        """How many failed, and which. Triton's "failed to load all models" is used only if all of them did."""
        names = ", ".join(f"'{name}'" for name in self.failed[:_MAX_REPORTED_NAMES])
        more = f" and {len(self.failed) - _MAX_REPORTED_NAMES} others" if len(self.failed) > _MAX_REPORTED_NAMES else ""
        if len(self.failed) == self.requested:
            return f"failed to load all models: {names}{more}"
        return f"failed to load {len(self.failed)} of {self.requested} models: {names}{more}"


class ModelManager:
    """Loads and unloads models, on request or by polling the repository.

    `explicit` is Triton's control mode EXPLICIT, the only one in which clients may load and, but for `conch run`,
    unload.
    """

    def __init__(
        self, options: ServerOptions, repositories: Repositories, builder: ModelBuilder, catalog: Catalog
    ) -> None:
        self._repositories = repositories
        self._builder = builder
        self._catalog = catalog
        self._links = EnsembleLinks(catalog, builder)
        self.explicit = options.model_control_mode == "explicit"
        self._unloads = self.explicit or options.unloads
        self._slots = asyncio.Semaphore(options.model_load_thread_count)
        self._locks: WeakValueDictionary[ModelId, asyncio.Lock] = WeakValueDictionary()
        self._waits = catalog.loads.waits
        self._steps_of_loads: dict[ModelId, set[ModelId]] = {}  # models of the steps of ensembles that are being loaded
        self._loaded_as_steps: set[ModelId] = set()  # whose load no client and no flag has requested by name
        self._watch = _RepositoryWatch(repositories)
        self._retirement = Retirement()
        self._without_files = _ModelsWithoutFiles(catalog)
        self._loader = Loader(
            repositories,
            builder,
            catalog,
            self._links,
            self._retirement,
            slots=self._slots,
            retries=options.model_load_retry_count,
        )

    def fingerprints(self) -> dict[ModelId, Fingerprint]:
        """Return names, sizes and times of the files that each loaded model is of."""
        return {model: files.fingerprint for model, files in self._loader.loaded.items()}

    # ── requests of clients ──

    def index(self, ready_only: bool) -> list[IndexEntry]:
        """Return every model of the repository and every version that was ever requested, by name and version.

        Raises Unavailable if the server could not read its repository at start.
        """
        self._catalog.check_started()
        rows = index_rows(self._catalog, self._ids(), self._repositories.duplicates())
        return [row for row in rows if not ready_only or row.state == VersionState.READY.value]

    async def load(
        self, name: str, config: str | None, files: Mapping[str, bytes], waiting: ModelId | None = None
    ) -> None:
        """Load or reload a model; `config` (JSON) and `files` ("<version>/<path>") replace what lies on disk.

        Loads the models of that name in all namespaces, as in Triton. `waiting` is the model whose own load waits for
        this one. If a reload fails, the previous versions stay in service.
        Raises Unavailable outside explicit mode, or if the repository of a served model does not respond; NotFound or
        ModelLoadError with the cause, mostly with Triton's code INTERNAL.
        """
        self._require(self.explicit, "load", name)
        if len(name) > _MAX_NAME_CHARACTERS:  # errors and the log repeat it
            raise InvalidRequest(f"a model's name has {len(name)} characters; names of folders have 255 at most")
        override = Override(config, files) if config is not None or files else None
        models = await self._models_named(name)
        if self._repositories.namespaced:  # one that was removed must not keep serving the name
            removed = [model for model in self._loader.loaded if model.name == name and model not in models]
            await asyncio.gather(*map(self._unload, removed))
        ordered = waiting is None
        async with self._waited_for(waiting, models):
            loads = (self._load(model, override, ordered=ordered) for model in models)
            results = await asyncio.gather(*loads, return_exceptions=True)
            if override is not None and override.files:
                known = await asyncio.to_thread(lambda: [m for m in models if self._repositories.fingerprint(m)])
                self._without_files.add(model for model in models if model not in known)
        raise_failures(results)

    async def unload(self, name: str, unload_dependents: bool, waiting: ModelId | None = None) -> None:
        """Unpublish a model; admitted requests are still answered. An unknown model is ignored.

        `unload_dependents` also unloads the models that were loaded as steps of an ensemble and that no other ensemble
        uses. `waiting` is the model whose load waits for this. Raises Unavailable if the server permits no unloads.
        """
        self._require(self._unloads, "unload", name)
        models = [model for model in {*self._loader.loaded, *self._locks.keys()} if model.name == name]
        async with self._waited_for(waiting, models):
            unloads = (self._unload(model, with_steps=unload_dependents, waiting=waiting) for model in models)
            await asyncio.gather(*unloads)
        await self._bound_removed(models)

    async def load_from(self, name: str, roots: Sequence[Root], namespace: str) -> None:
        """Load a model from roots that the server was not started with; `namespace` is theirs, where there are any.

        If the load fails, the roots are removed again. Raises as `load`, and InvalidRequest for the name of a model
        that is loaded.
        """
        self._require(self.explicit, "load", name)
        if any(model.name == name for model in self._loader.loaded):
            raise InvalidRequest(f"model '{name}' is already loaded", Code.ALREADY_EXISTS)
        self._repositories.add(roots, namespace)
        try:
            await self.load(name, None, {})
        except BaseException:
            await self.unload_from(name, roots, namespace)
            raise

    async def unload_from(self, name: str, roots: Sequence[Root], namespace: str) -> None:
        """Unload a model of `load_from` with the steps of an ensemble, wait until it has stopped, remove its roots."""
        await self.unload(name, unload_dependents=True)
        await self.retired(name)
        names = {name, *await asyncio.to_thread(_names, roots)}
        self._repositories.remove(roots, namespace)
        for model in [ModelId(namespace if self._repositories.namespaced else "", folder) for folder in names]:
            if not self._catalog.served(model):
                self._catalog.forget(model)  # a failed load must not keep the server from being ready

    async def _bound_removed(self, models: Sequence[ModelId]) -> None:
        """Bound the index's rows of unloaded models that have left the repository, like those of uploaded ones."""
        if len(self._catalog.records()) <= MAX_UPLOADED_MODELS:
            return
        try:
            missing = await asyncio.to_thread(lambda: [m for m in models if not self._repositories.fingerprint(m)])
        except ConchError:  # the repository does not answer
            return
        self._without_files.add(missing)

    async def retired(self, name: str) -> None:
        """Wait until the unloaded models of this name have been stopped."""
        await self._retirement.wait(name)

    # ── start, polling and stop ──

    async def load_at_start(self, names: Iterable[str]) -> StartReport:
        """Load these models, `*` being all. Failures go to the catalog and the log.

        Raises ConfigError, NotFound, Unavailable if the repository cannot be read.
        """
        try:
            requested, unknown = await self._models_at_start(names)
        finally:
            self._catalog.loads.end_reading()
        failed = await self._try_loads(requested)
        return StartReport(len(requested) + len(unknown), tuple(sorted([*map(str, failed), *unknown])))

    async def _models_at_start(self, names: Iterable[str]) -> tuple[list[ModelId], list[str]]:
        """Return the models of these names, and the names that are unknown, which are logged."""
        # The first snapshot precedes all reads, so that the first poll finds later changes.
        models = await self._watch.begin()
        self._catalog.names_at_start = frozenset(model.name for model in models) if self.explicit else ()
        requested: dict[ModelId, None] = {}
        unknown: list[str] = []
        for name in dict.fromkeys(names):
            try:
                requested |= dict.fromkeys(models if name == ALL_MODELS else await self._models_named(name))
            except NotFound as error:
                unknown.append(name)
                _log.error("%s", error)
        return list(requested), unknown

    async def poll(self, interval_s: float) -> None:
        """Poll the repository and load, reload and unload what has changed. Runs until cancelled.

        While the repository cannot be read, nothing changes; each error is logged once.
        """
        last_error = ""
        while True:
            await asyncio.sleep(interval_s)
            try:
                difference = await self._watch.changes_since_last(interval_s)
            except Exception as error:
                if last_error != str(error):
                    last_error = str(error)
                    _log.error("polling the model repository failed, models stay as they are: %s", load_error(error))
                continue
            last_error = ""
            self._catalog.start_failed = False
            await self._follow(difference)

    async def _follow(self, difference: Changes[ModelId]) -> None:
        duplicates = self._repositories.duplicates() if difference else frozenset()
        changed = [*difference.added, *difference.changed]
        _log.debug(
            "polled the model repository: %d models added, %d changed, %d removed",
            *map(len, (difference.added, difference.changed, difference.removed)),
        )
        for model in duplicates.intersection(changed):
            _log.error("failed to poll model '%s': not unique across all model repositories", model)
        for model in changed:
            self._catalog.exempt(model)
        await self._try_loads(model for model in changed if model not in duplicates)
        await asyncio.gather(*(self._unload(model) for model in (*difference.removed, *duplicates)))
        for model in difference.removed:
            self._catalog.forget(model)

    async def stop(self) -> None:
        """Drain and stop every model. The frontends have stopped sending requests."""
        await asyncio.gather(*(self._unload(model) for model in list(self._loader.loaded)))
        await self._retirement.wait()

    async def abandon(self) -> None:
        """Kill every model without waiting for responses, after the timeout of `stop`."""
        await asyncio.gather(*(model.kill() for model in [*self._catalog, *self._retirement.abandon()]))

    # ── steps ──

    def _require(self, allowed: bool, action: str, name: str) -> None:
        self._catalog.check_started()
        if not allowed:
            refusal = "explicit model load / unload is not allowed if polling is enabled"
            _log.warning("refused to %s '%s': %s", action, name, refusal)
            raise Unavailable(refusal)

    def _ids(self) -> list[ModelId]:
        try:
            return self._repositories.ids()
        except ConchError as error:
            _log.error("%s", error)
            return []

    async def _models_named(self, name: str) -> list[ModelId]:
        """Return all models of a name. Raises NotFound."""
        if not self._repositories.namespaced:  # without a thread: of requests for one model, the last one counts
            return self._repositories.named(name)
        try:
            return await asyncio.to_thread(self._repositories.named, name)
        except NotFound as error:
            raise logged(not_polled(name, error)) from error

    async def _try_loads(self, models: Iterable[ModelId]) -> list[ModelId]:
        """Load models and return those that failed. The next poll retries transient failures."""
        requested = list(models)
        tried: _Tried = {}
        for model in requested:  # those that wait for their turn are loading, too
            self._catalog.loads.begin(model)
        errors = await asyncio.gather(*(self._try_load(model, tried) for model in requested))
        failed = {model: error for model, error in zip(requested, errors, strict=True) if error is not None}
        self._watch.forget({model for model, error in failed.items() if error.code is Code.UNAVAILABLE})
        return list(failed)

    async def _try_load(self, model: ModelId, tried: _Tried) -> ConchError | None:
        """Load a model whose load has begun; return why it failed."""
        try:
            await self._load(model, None, tried=tried)
        except ConchError as error:
            return error
        except Exception as error:  # must not end the loads of other models
            _log.exception("loading model '%s' failed unexpectedly", model)
            return ModelLoadError(str(error))
        finally:
            self._catalog.loads.end(model)
        return None

    @asynccontextmanager
    async def _waited_for(self, waiting: ModelId | None, models: Iterable[ModelId]) -> AsyncIterator[None]:
        """Within the block, `waiting` waits for loads of `models`. Raises ModelLoadError for a deadlock."""
        if waiting is None:
            yield
            return
        with ExitStack() as waits:
            for model in models:
                waits.enter_context(self._waits.waiting(waiting, model))
            self._slots.release()  # a load that waits needs no slot, and the load that it waits for does
            try:
                yield
            finally:
                await self._slots.acquire()

    async def _load(
        self,
        model: ModelId,
        override: Override | None,
        *,
        ordered: bool = False,
        tried: _Tried | None = None,
        depth: int = 0,
    ) -> None:
        """Load a model and, before it, the models of its steps; `ordered`: at the request of a client.

        Models that were `tried` in the same round are skipped: nested ensembles share steps. `depth` is the number of
        ensembles around this load.
        """
        tried = {} if tried is None else tried
        with self._catalog.loads.loading(model):
            await self._load_in_turn(model, override, ordered, tried, depth)

    async def _load_in_turn(
        self, model: ModelId, override: Override | None, ordered: bool, tried: _Tried, depth: int
    ) -> None:
        async with self._locks.setdefault(model, asyncio.Lock()), self._keep_steps(model):
            if model in tried:
                if (failure := tried[model]) is not None:
                    raise failure
                if depth == 0:
                    self._loaded_as_steps.discard(model)
                return
            try:
                await self._load_now(model, override, ordered, tried, depth)
            except ConchError as error:
                tried[model] = error
                raise
            tried[model] = None

    async def _load_now(
        self, model: ModelId, override: Override | None, ordered: bool, tried: _Tried, depth: int
    ) -> None:
        if override is None and await self._unchanged(model):
            if ordered:  # success must not be reported if the repository cannot be read
                self._repositories.check_reachable(model)
            self._catalog.clear_failures(model)  # of files that are no longer there
            _log.debug("model '%s' is unchanged; not reloading", model)
            return
        log = LoadLog(model)
        with self._builder.events.changing("reload" if model in self._loader.loaded else "load", model.name):
            for _ in range(_MAX_ATTEMPTS):
                files = await self._loader.read(model, override)
                try:
                    for step in files.config.ensemble_steps:
                        await self._load_step(model, step, tried, depth)
                except ModelLoadError as cycle:
                    raise self._loader.note_failure(model, files, cycle) from cycle
                if await self._loader.apply(model, files, log):
                    if depth:
                        self._loaded_as_steps.add(model)
                    else:
                        self._loaded_as_steps.discard(model)
                    return
            kept_changing = ModelLoadError(f"the files of model '{model}' kept changing while it was being loaded")
            raise self._loader.note_failure(model, files, kept_changing)

    async def _load_step(self, ensemble: ModelId, step: EnsembleStep, tried: _Tried, depth: int) -> None:
        """Load the model of a step if it is not served. If that fails, the check of the ensemble reports it.

        Raises ModelLoadError for a deadlock, in which the ensemble waits for itself.
        """
        try:
            model = await asyncio.to_thread(
                self._repositories.step, step.model_name, step.model_namespace, ensemble.namespace
            )
        except ConchError as error:
            _log.error("%s", error)
            return
        self._steps_of_loads[ensemble].add(model)
        # Deeper nesting is rejected in any case, and each level takes several stack frames.
        if not self._catalog.served(model) and depth <= MAX_ENSEMBLE_DEPTH:
            with self._waits.waiting(ensemble, model, ensembles=True), suppress(ConchError):  # which is logged
                await self._load(model, None, tried=tried, depth=depth + 1)

    @asynccontextmanager
    async def _keep_steps(self, model: ModelId) -> AsyncIterator[None]:
        """Within the block, keep the models of an ensemble's steps from being unloaded."""
        self._steps_of_loads[model] = set()
        try:
            yield
        finally:
            del self._steps_of_loads[model]

    async def _unload(
        self, model: ModelId, *, with_steps: bool = False, if_unused: bool = False, waiting: ModelId | None = None
    ) -> None:
        """Unload a model once no load of an ensemble needs it.

        `if_unused`: unless it was loaded by name, as in Triton, or a served ensemble uses it. Raises ModelLoadError for
        a deadlock with such a load.
        """
        lock = self._locks.setdefault(model, asyncio.Lock())
        while True:
            for ensemble in self._loading_ensembles(model):
                with nullcontext() if waiting is None else self._waits.waiting(waiting, ensemble):
                    async with self._locks[ensemble]:
                        pass
            async with lock:
                if if_unused and (model not in self._loaded_as_steps or self._links.has_users(model)):
                    return
                if not self._loading_ensembles(model):
                    loaded = self._retire(model)
                    break
        if with_steps and loaded is not None:
            for step in {self._links.resolve(model.namespace, step) for step in loaded.config.ensemble_steps}:
                if step is not None:
                    await self._unload(step, with_steps=True, if_unused=True)

    def _loading_ensembles(self, step: ModelId) -> list[ModelId]:
        return [ensemble for ensemble, steps in self._steps_of_loads.items() if step in steps]

    def _retire(self, model: ModelId) -> ModelFiles | None:
        """Unpublish a model and return its files, None if it was not served."""
        loaded = self._loader.loaded.pop(model, None)
        self._loaded_as_steps.discard(model)
        if loaded is not None:
            self._builder.events.change("unload", monotonic_ns(), monotonic_ns(), model.name)
        served = self._catalog.publish(model, {})
        for version, record in self._catalog.records().get(model, {}).items():
            if record.state is not VersionState.UNAVAILABLE:
                self._catalog.note(model, version, VersionState.UNLOADING)
        self._retirement.retire(served, loaded, partial(self._note_unloaded, model))
        return loaded

    def _note_unloaded(self, model: ModelId, versions: Iterable[int]) -> None:
        for version in versions:
            record = self._catalog.records().get(model, {}).get(version)
            # It may have been loaded again or removed in the meantime.
            if record is not None and record.state is VersionState.UNLOADING:
                self._catalog.note(model, version, VersionState.UNAVAILABLE, UNLOADED)

    async def _unchanged(self, model: ModelId) -> bool:
        """Whether a model is served from the current files.

        A configuration of a load request stays in force while they are unchanged; uploaded files are for one load.
        """
        loaded = self._loader.loaded.get(model)
        served = self._catalog.served(model)
        if loaded is None or not served or loaded.uploaded:
            return False
        if any(isinstance(model, EnsembleModel) and model.misfit for model in served.values()):
            return False
        if loaded.config.is_ensemble and not await asyncio.to_thread(self._links_unchanged, model, loaded):
            return False
        return loaded.fingerprint == await asyncio.to_thread(self._repositories.fingerprint, model)

    def _links_unchanged(self, ensemble: ModelId, files: ModelFiles) -> bool:
        """Whether every step uses the model that a load of the ensemble would link it to now."""
        for step in files.config.ensemble_steps:
            try:
                model = self._repositories.step(step.model_name, step.model_namespace, ensemble.namespace)
            except ConchError:  # no longer in the repository: the model that is served stays linked
                continue
            if self._links.resolve(ensemble.namespace, step) != model:
                return False
        return True


def _names(roots: Iterable[Root]) -> list[str]:
    """Return the names of the models of roots; unreadable ones have none."""
    names: list[str] = []
    for root in roots:
        with suppress(ConchError):
            names += root.names()
    return names


class _RepositoryWatch:
    """The last snapshot of the repository, and the changes since. Snapshots are taken in a thread."""

    def __init__(self, repositories: Repositories) -> None:
        self._repositories = repositories
        self._seen: Mapping[ModelId, Fingerprint] = {}

    async def begin(self) -> Mapping[ModelId, Fingerprint]:
        """Record the first snapshot and return the models. Raises ConfigError, NotFound, Unavailable."""
        self._seen = await asyncio.to_thread(self._repositories.snapshot)
        return self._seen

    async def changes_since_last(self, interval_s: float) -> Changes[ModelId]:
        """Record a snapshot and return the changes, without files that are still being written. Raises as `begin`."""
        now: Mapping[ModelId, Fingerprint] = await asyncio.to_thread(self._repositories.snapshot)
        if changes(self._seen, now):
            await asyncio.sleep(min(interval_s, _SETTLE_S))
            now = settled(self._seen, now, await asyncio.to_thread(self._repositories.snapshot))
        difference = changes(self._seen, now)
        self._seen = now
        return difference

    def forget(self, models: Collection[ModelId]) -> None:
        """Report these models as new at the next poll."""
        self._seen = {model: seen for model, seen in self._seen.items() if model not in models}


class _ModelsWithoutFiles:
    """Models that no repository has, made of uploaded files or removed: bounds how many of them the catalog keeps."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._models: dict[ModelId, None] = {}  # the oldest first

    def add(self, models: Iterable[ModelId]) -> None:
        """Add models; beyond the bound, drop the oldest of those that are not served."""
        self._models |= dict.fromkeys(models)
        for model in list(self._models)[: max(len(self._models) - MAX_UPLOADED_MODELS, 0)]:
            states = {record.state for record in self._catalog.records().get(model, {}).values()}
            if not self._catalog.served(model) and states <= {VersionState.UNAVAILABLE}:
                del self._models[model]
                self._catalog.forget(model)
