"""One load of a model: read its files, start its versions, replace the previous ones and retire those.

Versions that are no longer served are drained, then stopped, in background tasks. The ensembles that use a model are
checked when it is replaced. The caller holds the model's lock, which serializes the loads of one model.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from logging import getLogger
from time import monotonic

from conch.base.errors import Code, ConchError, ConfigError, InvalidRequest, ModelLoadError, NotFound
from conch.domain.degradations import Degradation
from conch.domain.files.model_folder import chosen_versions
from conch.domain.model_config import EnsembleStep
from conch.server.core.catalog import UNLOADED, Catalog, VersionState
from conch.server.core.ensembles.ensemble_model import EnsembleModel
from conch.server.core.loading.builder import Built, ModelBuilder
from conch.server.core.loading.load_outcomes import (
    LoadLog,
    code_name,
    load_error,
    load_failure,
    logged,
    not_polled,
    replaced,
)
from conch.server.core.served_model import ServedModel
from conch.server.repository.namespaces import ModelId, Repositories
from conch.server.repository.override import Override
from conch.server.repository.store import ModelFiles, is_folder_name
from conch.server.repository.watch import Fingerprint, sources

_log = getLogger(__name__)

PREVIOUS = "previous_version_served"  # a reason of degradations
_IN_VERSION = re.compile(r"[1-9][0-9]*/")


class EnsembleLinks:
    """Queries over the catalog; holds no state."""

    def __init__(self, catalog: Catalog, builder: ModelBuilder) -> None:
        self._catalog = catalog
        self._builder = builder

    def check_users(self, model: ModelId) -> None:
        """Check the ensembles that use a model which has just been published; an ensemble itself against its steps.

        The models of its steps may have been replaced while it was being loaded. One that does not fit is not ready.
        """
        for served in self._catalog:
            if isinstance(served, EnsembleModel) and (served.id == model or self._uses(served, model)):
                try:
                    if self._builder.check_steps(served.config, served.id.namespace) != served.flow:
                        raise ConfigError(
                            f"ensemble '{served.config.name}': other steps are decoupled than when it was loaded, "
                            f"because model '{model}' was reloaded; reload the ensemble"
                        )
                    served.misfit = ""
                except ConfigError as error:
                    served.misfit = error.message
                    _log.error("%s", error)

    def has_users(self, model: ModelId) -> bool:
        """Whether an ensemble has a step that uses the model."""
        return any(self._uses(served, model) for served in self._catalog)

    def resolve(self, namespace: str, step: EnsembleStep) -> ModelId | None:
        """Return the served model of a step of an ensemble in this namespace; None if there is none, or several."""
        try:
            return self._catalog.of_step(namespace, step).id
        except (NotFound, InvalidRequest):
            return None

    def _uses(self, served: ServedModel, model: ModelId) -> bool:
        return any(
            step.model_name == model.name and self.resolve(served.id.namespace, step) in (model, None)
            for step in served.config.ensemble_steps
        )


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


class Loader:
    """Loads models; `loaded` has the files of those that are served.

    `slots` bounds the concurrent loads; `retries` is the number of further attempts after a failure.
    """

    def __init__(
        self,
        repositories: Repositories,
        builder: ModelBuilder,
        catalog: Catalog,
        links: EnsembleLinks,
        retirement: Retirement,
        *,
        slots: asyncio.Semaphore,
        retries: int,
    ) -> None:
        self._repositories = repositories
        self._builder = builder
        self._catalog = catalog
        self._links = links
        self._retirement = retirement
        self._slots = slots
        self._retries = retries
        self.loaded: dict[ModelId, ModelFiles] = {}

    async def read(self, model: ModelId, override: Override | None) -> ModelFiles:
        """Read a model's files. Logs and raises NotFound, InvalidRequest, ModelLoadError."""
        try:
            return await asyncio.to_thread(self._repositories.read, model, override)
        except NotFound as error:
            raise logged(not_polled(model.name, error)) from error
        except Exception as error:
            raise logged(self._unreadable(model, override, load_error(error))) from error

    async def apply(self, model: ModelId, files: ModelFiles, log: LoadLog) -> bool:
        """Serve a model from these files; return False, without effect, if they have changed during the load.

        Raises ModelLoadError; then the previous versions stay in service.
        """
        return await self._rearrange(model, files, log) or await self._replace(model, files, log)

    async def _rearrange(self, model: ModelId, files: ModelFiles, log: LoadLog) -> bool:
        """Start and stop instances of the served versions; False if the files need more than that."""
        old, served = self.loaded.get(model), self._catalog.served(model)
        if old is None or not served:
            return False
        try:
            async with self._slots:
                done = await self._builder.rearrange(files, old, served)
        except Exception as error:
            failures = dict.fromkeys(served, load_error(error))
            self._note_previous(model, files)
            log.failed(failures, still_served=True)
            raise load_failure(model, failures) from error
        if done:
            self.loaded[model] = files
            log.rearranged(served)
        return done

    async def _replace(self, model: ModelId, files: ModelFiles, log: LoadLog) -> bool:
        """Start the versions of these files and replace the served ones.

        Returns False if the files have changed during the load: a mix of old and new files must not be served.
        """
        before = self._catalog.served(model)
        versions = _selected_versions(files)
        log.loading(versions)
        for version in versions:
            if version not in before:
                self._catalog.note(model, version, VersionState.LOADING)
        built = await self._build(model, files)
        for _ in range(self._retries):
            if not built.failures:
                break
            await built.discard()
            built = await self._build(model, files)
        if not files.temporary and await self._has_changed(model, files):
            await self._discard(built, files)
            return False
        for version in {*self._catalog.records().get(model, {})} - before.keys() - built.served.keys():
            self._catalog.note(model, version, VersionState.UNAVAILABLE, UNLOADED)
        if built.failures:
            self._note_failures(model, files, built, before)
            await self._discard(built, files)
            log.failed(built.failures, still_served=bool(before), stopped=() if before else built.served)
            raise load_failure(model, built.failures)
        self._publish(model, built, files)
        log.loaded(built.served, built.kept)
        return True

    def _note_failures(
        self, model: ModelId, files: ModelFiles, built: Built, before: Mapping[int, ServedModel]
    ) -> None:
        """Record why no version of a load is served: a model is served with all of its versions or not at all."""
        notes = dict.fromkeys(built.served, UNLOADED)
        notes |= {version: f"{code_name(error)}: {error.message}" for version, error in built.failures.items()}
        for version, reason in notes.items():
            if version not in before:
                self._catalog.note(model, version, VersionState.UNAVAILABLE, reason)
        self._note_previous(model, files)

    def _note_previous(self, model: ModelId, files: ModelFiles | None = None) -> None:
        """Mark the versions that stay in service although a newer state of the model's files cannot be loaded.

        A configuration or files that a client sent are not a newer state: the client gets the error.
        """
        if files is not None and files.overridden:
            return
        for served in self._catalog.served(model).values():
            text = f"version {served.version} of model '{model}' stays in service: a newer state failed to load"
            if not any(degradation.reason == PREVIOUS for degradation in served.degraded):
                served.degraded.append(Degradation(PREVIOUS, text, str(model)))

    async def _build(self, model: ModelId, files: ModelFiles) -> Built:
        try:
            async with self._slots:
                config = await self._builder.configure(files)
                unchanged = _unchanged_versions(self._catalog.served(model), self.loaded.get(model), files)
                return await self._builder.build(files, config, unchanged)
        except Exception as error:
            return Built(failures=dict.fromkeys(_selected_versions(files) or (1,), load_error(error)))

    def _publish(self, model: ModelId, built: Built, files: ModelFiles) -> None:
        previous = self.loaded.get(model)
        self.loaded[model] = files
        for served in built.kept.values():
            served.config = built.config or served.config  # its version policy may differ
            served.degraded = [degradation for degradation in served.degraded if degradation.reason != PREVIOUS]
        newest = built.served[max(built.served)]
        old = self._catalog.publish(model, built.served)
        removed = [served for served in old if built.served.get(served.version) is not served]
        for served in old:
            successors = {served.version, newest.version if served is old[-1] else served.version}
            for version in successors:
                if (successor := built.served.get(version, newest)) is not served:
                    successor.take_over(served)
            if served.version not in built.served:
                self._catalog.note(model, served.version, VersionState.UNAVAILABLE, UNLOADED)
        self._retirement.retire(removed, previous, partial(self._log_replaced, model))
        self._links.check_users(model)

    def _log_replaced(self, model: ModelId, previous: Sequence[int]) -> None:
        """Log the state after a reload: the line before it says that a version was unloaded."""
        if previous and (served := self._catalog.served(model)):
            replaced(model, served, previous)

    async def _discard(self, built: Built, files: ModelFiles) -> None:
        await built.discard()
        await asyncio.to_thread(files.discard)

    async def _has_changed(self, model: ModelId, files: ModelFiles) -> bool:
        """Whether the sources of the model have changed since its configuration was read."""
        now = await asyncio.to_thread(self._repositories.fingerprint, model)
        return sources(now) != sources(files.fingerprint)

    def _unreadable(self, model: ModelId, override: Override | None, error: ConchError) -> ConchError:
        """Return the error of an unreadable configuration: of the client that sent it, or of the repository."""
        text = f"failed to load '{model}', failed to poll from model repository: {error.message}"
        unavailable = error.code is Code.UNAVAILABLE
        if override is None:
            self._note_previous(model)
        if override is not None and not unavailable:
            return InvalidRequest(text, Code.INTERNAL)
        if not self._catalog.served(model) and is_folder_name(model.name):
            self._catalog.note_unread(model, error.message, tolerated=not unavailable)
        return ModelLoadError(text, Code.UNAVAILABLE if unavailable else None)

    def note_failure(self, model: ModelId, files: ModelFiles, error: ModelLoadError) -> ModelLoadError:
        """Record and log why a readable model is not loaded, and return the error."""
        for version in _selected_versions(files):
            if version not in self._catalog.served(model):
                self._catalog.note(model, version, VersionState.UNAVAILABLE, error.message)
        return logged(error)


def _selected_versions(files: ModelFiles) -> tuple[int, ...]:
    """Return the versions that the version policy selects; () on an error, which the load reports."""
    try:
        return chosen_versions(files.config, files.versions_on_disk)
    except ModelLoadError:
        return ()


def _unchanged_versions(
    served: Mapping[int, ServedModel], old: ModelFiles | None, new: ModelFiles
) -> dict[int, ServedModel]:
    """Return the served versions whose files are the same in both states of a model's folder: a reload keeps them.

    A file outside the version folders, such as labels, belongs to every version. Configurations are compared elsewhere,
    after completion. Temporary files, of a load request or a remote repository, cannot be compared.
    """
    if old is None or old.temporary or new.temporary or old.directory != new.directory:
        return {}
    if _shared(old.fingerprint) != _shared(new.fingerprint):
        return {}
    return {
        version: model
        for version, model in served.items()
        if _of_version(old.fingerprint, version) == _of_version(new.fingerprint, version)
    }


def _of_version(stamps: Fingerprint, version: int) -> Fingerprint:
    return tuple(entry for entry in stamps if entry[0].startswith(f"{version}/"))


def _shared(stamps: Fingerprint) -> Fingerprint:
    return tuple(entry for entry in stamps if not _IN_VERSION.match(entry[0]) and not entry[0].endswith(".pbtxt"))
