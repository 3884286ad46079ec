"""What one load does: read the model's files, bring its versions up, put them in the place of those before.

The caller holds the model's lock, so that loads of one model follow each other.
"""

import asyncio
import re
from collections.abc import Mapping

from conch.core.catalog import UNLOADED, Catalog, VersionState
from conch.core.load_errors import code_name, load_error, load_failure, logged, not_polled
from conch.core.loading.builder import Built, ModelBuilder
from conch.core.loading.ensemble_links import EnsembleLinks
from conch.core.loading.load_log import LoadLog
from conch.core.loading.retirement import Retirement
from conch.core.served_model import ServedModel
from conch.errors import Code, ConchError, InvalidRequest, ModelLoadError, NotFound
from conch.repository.namespaces import ModelId, Repositories
from conch.repository.override import Override
from conch.repository.store import ModelFiles, is_folder_name
from conch.repository.versions import chosen_versions
from conch.repository.watch import Fingerprint, sources

_IN_VERSION = re.compile(r"[1-9][0-9]*/")


class Loader:
    """Loads models and remembers from which files.

    `slots` bounds the loads that run at the same time; `retries` are further attempts at versions that fail.
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
        """Read a model's files. Raises NotFound, InvalidRequest, ModelLoadError, and logs them."""
        try:
            return await asyncio.to_thread(self._repositories.read, model, override)
        except NotFound as error:
            raise logged(not_polled(model.name, error)) from error
        except Exception as error:
            raise logged(self._unreadable(model, override, load_error(error))) from error

    async def apply(self, model: ModelId, files: ModelFiles, log: LoadLog) -> bool:
        """Serve a model from these files; return False if they have changed meanwhile, and nothing has been done.

        Raises ModelLoadError; what was served before then stays in service.
        """
        return await self._rearranged(model, files, log) or await self._replace(model, files, log)

    async def _rearranged(self, model: ModelId, files: ModelFiles, log: LoadLog) -> bool:
        """Start and stop instances of what is served, if that is all that the files want; whether it was."""
        old, served = self.loaded.get(model), self._catalog.served(model)
        if old is None or not served:
            return False
        try:
            async with self._slots:
                done = await self._builder.rearrange(files, old, served)
        except Exception as error:
            failures = dict.fromkeys(served, load_error(error))
            log.failed(failures, still_served=True)
            raise load_failure(model, failures) from error
        if done:
            self.loaded[model] = files
            log.rearranged(served)
        return done

    async def _replace(self, model: ModelId, files: ModelFiles, log: LoadLog) -> bool:
        """Bring the model up from its files and put it in the place of what is served now.

        Returns whether that is how it stands: False if the files were changed meanwhile. Then nothing is served of what
        may be half from the old ones and half from the new ones.
        """
        before = self._catalog.served(model)
        wanted = _wanted(files)
        log.loading(wanted)
        for version in wanted:
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
        for version, failure in built.failures.items():
            if version not in before:
                self._catalog.note(model, version, VersionState.UNAVAILABLE, f"{code_name(failure)}: {failure.message}")
        if built.failures and (before or not built.served):
            await self._discard(built, files)
        elif built.served:
            self._publish(model, built, files)
            log.loaded(built.served, built.kept)
        if built.failures:
            log.failed(built.failures, still_served=bool(before))
            raise load_failure(model, built.failures)
        return True

    async def _build(self, model: ModelId, files: ModelFiles) -> Built:
        try:
            async with self._slots:
                config = await self._builder.configure(files)
                unchanged = _unchanged_versions(self._catalog.served(model), self.loaded.get(model), files)
                return await self._builder.build(files, config, unchanged)
        except Exception as error:
            return Built(failures=dict.fromkeys(_wanted(files) or (1,), load_error(error)))

    def _publish(self, model: ModelId, built: Built, files: ModelFiles) -> None:
        previous = self.loaded.get(model)
        self.loaded[model] = files
        newest = built.served[max(built.served)]
        old = self._catalog.publish(model, built.served)
        gone = [served for served in old if built.served.get(served.version) is not served]
        for served in old:
            heirs = {served.version, newest.version if served is old[-1] else served.version}
            for version in heirs:
                if (heir := built.served.get(version, newest)) is not served:
                    heir.take_over(served)
            if served.version not in built.served:
                self._catalog.note(model, served.version, VersionState.UNAVAILABLE, UNLOADED)
        self._retirement.retire(gone, previous, None)
        self._links.check_users(model)

    async def _discard(self, built: Built, files: ModelFiles) -> None:
        await built.discard()
        await asyncio.to_thread(files.discard)

    async def _has_changed(self, model: ModelId, files: ModelFiles) -> bool:
        """Whether what the model is made from is not what it was when its configuration was read."""
        now = await asyncio.to_thread(self._repositories.fingerprint, model)
        return sources(now) != sources(files.fingerprint)

    def _unreadable(self, model: ModelId, override: Override | None, error: ConchError) -> ConchError:
        """Name the cause of a configuration that cannot be read: the client's who sent it, else the repository's."""
        text = f"failed to load '{model}', failed to poll from model repository: {error.message}"
        unavailable = error.code is Code.UNAVAILABLE
        if override is not None and not unavailable:
            return InvalidRequest(text, Code.INTERNAL)
        if not self._catalog.served(model) and is_folder_name(model.name):
            self._catalog.note(model, 1, VersionState.UNAVAILABLE, error.message, unread=True)
        return ModelLoadError(text, Code.UNAVAILABLE if unavailable else None)

    def refused(self, model: ModelId, files: ModelFiles, error: ModelLoadError) -> ModelLoadError:
        """Note and log why a model whose files could be read is not loaded; return the error."""
        for version in _wanted(files):
            if version not in self._catalog.served(model):
                self._catalog.note(model, version, VersionState.UNAVAILABLE, error.message)
        return logged(error)


def _wanted(files: ModelFiles) -> tuple[int, ...]:
    """Return the versions that the policy chooses; none if it chooses none, which the load reports."""
    try:
        return chosen_versions(files.config, files.versions_on_disk)
    except ModelLoadError:
        return ()


def _unchanged_versions(
    served: Mapping[int, ServedModel], old: ModelFiles | None, new: ModelFiles
) -> dict[int, ServedModel]:
    """Return the served versions with the same files in both states of a model's folder.

    A file outside of the version folders, such as labels, belongs to every version. Configurations are left out: they
    are compared when they are complete. Nothing is known of files that a load request or a remote repository brought.
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
