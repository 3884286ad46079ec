"""Models come and go: load, unload, reload and poll, without losing a request.

A reload brings the new version up first, publishes it in one step, and only then drains and stops the old one. Loads of
one model follow each other; loads of different models run side by side. Nothing here blocks the event loop.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from logging import getLogger
from weakref import WeakValueDictionary

from conch.core.builder import Built, ModelBuilder, load_error
from conch.core.catalog import Catalog, VersionState
from conch.core.ensemble import EnsembleModel
from conch.core.served import Served
from conch.errors import Code, ConchError, ConfigError, InvalidRequest, ModelLoadError, NotFound, Unavailable
from conch.repository.override import Override
from conch.repository.store import ModelFiles, Repository
from conch.repository.watch import Changes, Fingerprint, changes, settled, sources

_log = getLogger(__name__)

UNLOADED = "unloaded"
# How long files must have kept still before polling takes them for complete.
_SETTLE_S = 2.0
# How often a load begins anew because the model's files changed meanwhile.
_ATTEMPTS = 3
ALL_MODELS = "*"


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One row of the repository index. A model that was never loaded has a name only."""

    name: str
    version: str = ""
    state: str = ""
    reason: str = ""


class ModelControl:
    """Keeps the catalog true to the repository, by order or by polling.

    `explicit` is Triton's control mode EXPLICIT, the only one in which clients may load and unload.
    """

    def __init__(
        self,
        repository: Repository,
        builder: ModelBuilder,
        catalog: Catalog,
        *,
        explicit: bool,
        load_threads: int = 4,
        load_retries: int = 0,
    ) -> None:
        self._repository = repository
        self._builder = builder
        self._catalog = catalog
        self._explicit = explicit
        self._load_retries = load_retries
        self._slots = asyncio.Semaphore(load_threads)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._waits_for: dict[str, str] = {}  # ensembles that are being loaded → the step that each waits for
        self._loaded: dict[str, ModelFiles] = {}
        self._seen: Mapping[str, Fingerprint] = {}
        self._retiring: dict[asyncio.Task[None], list[Served]] = {}

    # ── what clients may ask for ──

    def index(self, ready_only: bool) -> list[IndexEntry]:
        """Return every model of the repository and every version that was asked for, by name and version."""
        records = self._catalog.records()
        rows: list[IndexEntry] = []
        for name in sorted({*self._names(), *records}):
            served = self._catalog.served(name)
            for version, record in sorted(records.get(name, {}).items()):
                state, reason = record.state, record.reason
                if state is VersionState.READY and version in served and not served[version].ready:
                    state, reason = VersionState.UNAVAILABLE, "not ready: no healthy instance, or a step is not ready"
                rows.append(IndexEntry(name, str(version), state.value, reason))
            if name not in records:
                rows.append(IndexEntry(name))
        if ready_only:
            return [row for row in rows if row.state == VersionState.READY.value]
        return rows

    async def load(self, name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        """Load or reload a model; with `config` (JSON) and `files` ("<version>/<path>") in place of what lies on disk.

        Raises Unavailable outside explicit mode, ModelLoadError with the cause. A model that was served before and
        fails to reload is served on as it was.
        """
        self._require_explicit()
        await self._load(name, Override(config, files) if config is not None or files else None)

    async def unload(self, name: str, unload_dependents: bool) -> None:
        """Take a model out of service; what it has admitted is still answered. An unknown model is no error.

        With `unload_dependents` an ensemble takes along the models of its steps that no other ensemble uses.
        Raises Unavailable outside explicit mode.
        """
        self._require_explicit()
        await self._unload(name, with_steps=unload_dependents)

    # ── what the server does by itself ──

    async def load_at_start(self, names: Iterable[str]) -> None:
        """Load these models, `*` being all. Failures are written into the catalog and the log."""
        wanted = list(names)
        # Before anything is read, so that what changes in the meantime shows up at the first poll.
        self._seen = await asyncio.to_thread(self._repository.snapshot)
        if ALL_MODELS in wanted:
            wanted = list(self._seen)
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

    async def _follow(self, difference: Changes, now: Mapping[str, Fingerprint]) -> None:
        self._seen = now
        await self._try_loads((*difference.added, *difference.changed))
        await asyncio.gather(*(self._unload(name) for name in difference.removed))
        for name in difference.removed:
            self._catalog.forget(name)

    async def stop(self) -> None:
        """Drain and stop every model. The frontends have stopped sending requests."""
        await asyncio.gather(*(self._unload(name) for name in list(self._loaded)))
        await asyncio.gather(*self._retiring)

    async def abandon(self) -> None:
        """End every model without waiting for answers: the time to stop gracefully is over."""
        models = [*self._catalog, *(model for retiring in self._retiring.values() for model in retiring)]
        for task in self._retiring:
            task.cancel()
        await asyncio.gather(*(model.kill() for model in models))

    # ── the steps ──

    async def _look(self, settle_s: float) -> Mapping[str, Fingerprint]:
        """Return the state of the repository, without what somebody is just writing."""
        now = await asyncio.to_thread(self._repository.snapshot)
        if not changes(self._seen, now):
            return now
        await asyncio.sleep(settle_s)
        return settled(self._seen, now, await asyncio.to_thread(self._repository.snapshot))

    def _require_explicit(self) -> None:
        if not self._explicit:
            raise Unavailable("explicit model load / unload is not allowed if polling is enabled")

    def _names(self) -> list[str]:
        try:
            return self._repository.names()
        except ConchError as error:
            _log.error("%s", error)
            return []

    async def _try_loads(self, names: Iterable[str]) -> None:
        """Load models and log what fails. What failed for lack of something that may come back is due again."""
        wanted = list(names)
        passing = await asyncio.gather(*map(self._try_load, wanted))
        due = {name for name, again in zip(wanted, passing, strict=True) if again}
        self._seen = {name: seen for name, seen in self._seen.items() if name not in due}

    async def _try_load(self, name: str) -> bool:
        """Load a model; return whether it failed for a reason that may pass."""
        try:
            await self._load(name, None)
        except ConchError as error:
            _log.error("%s", error)
            return error.code is Code.UNAVAILABLE
        except Exception:  # of one model: the others are still to be looked after
            _log.exception("loading model '%s' failed unexpectedly", name)
        return False

    async def _load(self, name: str, override: Override | None, path: tuple[str, ...] = ()) -> None:
        """Load a model and, before it, the models of its steps. `path` are the ensembles that this load is for."""
        async with self._locks.setdefault(name, asyncio.Lock()):
            if override is None and await self._unchanged(name):
                return
            for _ in range(_ATTEMPTS):
                files = await self._read(name, override)
                for step in files.config.ensemble_steps:
                    await self._load_step(step.model_name, (*path, name))
                if await self._replace(name, files):
                    return
            raise self._unloadable(name, files)

    async def _read(self, name: str, override: Override | None) -> ModelFiles:
        try:
            return await asyncio.to_thread(self._repository.read, name, override)
        except NotFound as error:
            raise NotFound(f"failed to load '{name}', failed to poll from model repository: {error}") from error
        except Exception as error:
            raise self._unreadable(name, override, load_error(error)) from error

    async def _load_step(self, name: str, path: tuple[str, ...]) -> None:
        """See to it that a step's model is there. If it is not, the check of the ensemble will say so."""
        waited_for: str | None = name
        while waited_for is not None:  # in this load, or by way of another one that waits for this
            if waited_for in path:
                raise ModelLoadError(f"circular ensemble: {' → '.join((*path, name))}", Code.INVALID_ARG)
            waited_for = self._waits_for.get(waited_for)
        if not self._catalog.served(name):
            self._waits_for[path[-1]] = name
            try:
                await self._load(name, None, path)
            except ConchError as error:
                _log.error("%s", error)
            finally:
                del self._waits_for[path[-1]]

    async def _replace(self, name: str, files: ModelFiles) -> bool:
        """Bring the model up from its files and put it in the place of what is served now.

        Returns whether that is how it stands: False if the files were changed meanwhile. Then nothing is served of what
        may be half from the old ones and half from the new ones.
        """
        before = self._catalog.served(name)
        for version in files.versions_on_disk:
            if version not in before:
                self._catalog.note(name, version, VersionState.LOADING)
        built = await self._build(files)
        for _ in range(self._load_retries):
            if not built.failures:
                break
            await asyncio.gather(*(served.stop() for served in built.served.values()))
            built = await self._build(files)
        if not files.temporary and await self._has_changed(files):
            await self._discard(built, files)
            return False
        for version in files.versions_on_disk:
            if version not in before and version not in built.served:
                self._catalog.note(name, version, VersionState.UNAVAILABLE, UNLOADED)
        for version, failure in built.failures.items():
            if version not in before:
                self._catalog.note(name, version, VersionState.UNAVAILABLE, failure.message)
        if built.failures and before:
            await self._discard(built, files)
        elif built.served:
            self._publish(name, built, files)
        if built.failures:
            raise _load_failure(name, built.failures)
        return True

    async def _build(self, files: ModelFiles) -> Built:
        try:
            async with self._slots:
                return await self._builder.build(files, await self._builder.configure(files))
        except Exception as error:
            return Built(failures=dict.fromkeys(files.versions_on_disk or (1,), load_error(error)))

    def _publish(self, name: str, built: Built, files: ModelFiles) -> None:
        previous = self._loaded.get(name)
        self._loaded[name] = files
        newest = built.served[max(built.served)]
        old = self._catalog.publish(name, built.served)
        for served in old:
            built.served.get(served.version, newest).take_over(served)
            if served.version not in built.served:
                self._catalog.note(name, served.version, VersionState.UNAVAILABLE, UNLOADED)
        self._retire(old, previous)
        self._check_ensembles_of(name)
        _log.info("successfully loaded '%s' version %s", name, ", ".join(map(str, sorted(built.served))))

    async def _unload(self, name: str, *, with_steps: bool = False) -> None:
        async with self._locks.setdefault(name, asyncio.Lock()):
            loaded = self._loaded.pop(name, None)
            served = self._catalog.publish(name, {})
            for version, record in self._catalog.records().get(name, {}).items():
                if record.state is not VersionState.UNAVAILABLE:
                    self._catalog.note(name, version, VersionState.UNLOADING)
            self._retire(served, loaded, unloaded=name)
        if with_steps and loaded is not None:
            for step in {step.model_name for step in loaded.config.ensemble_steps}:
                if not self._used_by_an_ensemble(step):
                    await self._unload(step, with_steps=True)

    def _retire(self, old: Iterable[Served], files: ModelFiles | None, *, unloaded: str = "") -> None:
        """Drain and stop in the background what is not served any more, then remove what only it needed."""

        async def retire(models: list[Served]) -> None:
            await asyncio.gather(*(model.drain() for model in models))
            await asyncio.gather(*(model.stop() for model in models))
            if files is not None:
                await asyncio.to_thread(files.discard)
            for model in models:
                record = self._catalog.records().get(unloaded, {}).get(model.version)
                # It may have been loaded again, or forgotten, in the meantime.
                if record is not None and record.state is VersionState.UNLOADING:
                    self._catalog.note(unloaded, model.version, VersionState.UNAVAILABLE, UNLOADED)

        models = list(old)
        task = asyncio.create_task(retire(models))
        self._retiring[task] = models
        task.add_done_callback(self._retiring.pop)

    async def _discard(self, built: Built, files: ModelFiles) -> None:
        await asyncio.gather(*(served.stop() for served in built.served.values()))
        await asyncio.to_thread(files.discard)

    async def _unchanged(self, name: str) -> bool:
        """Whether a model is served from the files that are there now; an override stays in force while it is."""
        loaded = self._loaded.get(name)
        served = self._catalog.served(name)
        if loaded is None or not served:
            return False
        if any(isinstance(one, EnsembleModel) and one.misfit for one in served.values()):
            return False
        return loaded.fingerprint == await asyncio.to_thread(self._repository.fingerprint, name)

    async def _has_changed(self, files: ModelFiles) -> bool:
        """Whether what the model is made from is not what it was when its configuration was read."""
        now = await asyncio.to_thread(self._repository.fingerprint, files.name)
        return sources(now) != sources(files.fingerprint)

    def _check_ensembles_of(self, name: str) -> None:
        """See whether ensembles still fit to a model that has just been replaced."""
        for served in self._catalog:
            if isinstance(served, EnsembleModel) and any(s.model_name == name for s in served.config.ensemble_steps):
                try:
                    if self._builder.check_steps(served.config) != served.flow:
                        raise ConfigError(
                            f"ensemble '{served.config.name}': other steps of it are decoupled than when it was "
                            f"loaded, model '{name}' having been reloaded; load the ensemble anew"
                        )
                    served.misfit = ""
                except ConfigError as error:
                    served.misfit = error.message
                    _log.error("%s", error)

    def _used_by_an_ensemble(self, name: str) -> bool:
        return any(step.model_name == name for served in self._catalog for step in served.config.ensemble_steps)

    def _unreadable(self, name: str, override: Override | None, error: ConchError) -> ConchError:
        """Name the cause of a configuration that cannot be read: the client's who sent it, else the repository's."""
        text = f"failed to load '{name}', failed to poll from model repository: {error.message}"
        unavailable = error.code is Code.UNAVAILABLE
        if override is not None and not unavailable:
            return InvalidRequest(text)
        if not self._catalog.served(name):
            self._catalog.note(name, 1, VersionState.UNAVAILABLE, error.message)
        return ModelLoadError(text, Code.UNAVAILABLE if unavailable else None)

    def _unloadable(self, name: str, files: ModelFiles) -> ModelLoadError:
        error = ModelLoadError(f"the files of model '{name}' kept changing while it was being loaded")
        for version in files.versions_on_disk:
            if version not in self._catalog.served(name):
                self._catalog.note(name, version, VersionState.UNAVAILABLE, error.message)
        return error


def _load_failure(name: str, failures: Mapping[int, ConchError]) -> ModelLoadError:
    causes = "".join(
        f"version {version} is at UNAVAILABLE state: {_CODE_NAMES[error.code]}: {error.message};\n"
        for version, error in sorted(failures.items())
    )
    passing = any(error.code is Code.UNAVAILABLE for error in failures.values())
    return ModelLoadError(
        f"load failed for model '{name}': {causes}", Code.UNAVAILABLE if passing else Code.INVALID_ARG
    )


# As Triton prints its codes in the reasons of the index.
_CODE_NAMES = {
    Code.UNKNOWN: "Unknown",
    Code.INTERNAL: "Internal",
    Code.NOT_FOUND: "Not found",
    Code.INVALID_ARG: "Invalid argument",
    Code.UNAVAILABLE: "Unavailable",
    Code.UNSUPPORTED: "Unsupported",
    Code.ALREADY_EXISTS: "Already exists",
    Code.CANCELLED: "Cancelled",
}
