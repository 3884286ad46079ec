# Compiled by mypyc in wheels.
"""The catalog: every model that the server knows, its versions and their states.

Written by `ModelManager`, read by every request. A version is replaced atomically: a request finds either the old one
or the new one. Requests carry no namespace: a name that is in several namespaces is ambiguous.
"""

import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from conch.base.errors import ConchError, InvalidRequest, ModelLoading, NotFound, Unavailable
from conch.domain.model_config import EnsembleStep
from conch.server.core.loading.load_progress import LoadProgress, LoadState
from conch.server.core.served_model import ServedModel
from conch.server.repository.namespaces import ModelId

UNLOADED: Final = "unloaded"
# Of the reason of a failed load, in errors of requests; the index and the log have all of it.
_MAX_REASON_CHARACTERS: Final = 200
# The folders of paths, which clients that may not read the index need not know.
_FOLDERS: Final = re.compile(r"(?<![\w.:/])/(?:[^/\s'\"]+/)+")

_DUPLICATE: Final = "model appears in two or more repositories"


class VersionState(Enum):
    """States of a model version, by their names in the repository index."""

    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"  # takes no new requests, finishes the old ones
    UNAVAILABLE = "UNAVAILABLE"


@dataclass(slots=True)
class VersionRecord:
    """The state of one version; `reason` says why it is not READY."""

    state: VersionState
    reason: str = ""
    unread: bool = False  # a placeholder for the versions of a model whose configuration could not be read
    tolerated: bool = False  # the server can be ready nevertheless

    @property
    def failed(self) -> bool:
        """Whether it should be served but cannot be."""
        return self.state is VersionState.UNAVAILABLE and self.reason not in ("", UNLOADED)


class Catalog:
    """The served models by name and version, and the states of all others."""

    def __init__(self) -> None:
        self._models: dict[ModelId, dict[int, ServedModel]] = {}
        self._records: dict[ModelId, dict[int, VersionRecord]] = {}
        self._ids: dict[str, list[ModelId]] = {}  # of the models in `_records`, by their names
        # What requests find: models whose names are in only one namespace.
        self._served: dict[str, dict[int, ServedModel]] = {}
        self._newest: dict[str, ServedModel] = {}
        self._exempt: set[ModelId] = set()
        self.loads = LoadProgress()
        self.names_at_start: Collection[str] = ()  # of the models in the repository
        self.on_publish: Callable[[], None] | None = None  # called when served versions have changed
        self.start_failed = False  # whether the repository could not be read, neither at start nor since

    def __iter__(self) -> Iterator[ServedModel]:
        for versions in self._models.values():
            yield from versions.values()

    def find(self, name: str, version: int | None) -> ServedModel:
        """Return the requested version, or the newest one.

        Raises NotFound, Unavailable for a model that is being loaded and for a known version that is not ready,
        InvalidRequest for an ambiguous name. Their messages begin with Triton's words.
        """
        if version is None:
            served = self._newest.get(name)
            if served is not None:
                return served
        else:
            served = self._served.get(name, {}).get(version)
            if served is not None:
                return served
        raise self._lookup_error(name, version)

    def find_from(self, namespace: str, name: str, version: int | None) -> ServedModel:
        """Return the model that a name refers to in this namespace: a model of the namespace before any other.

        Raises as `find`.
        """
        if namespace and ModelId(namespace, name) in self._models:
            return self._find_in(ModelId(namespace, name), version)
        return self.find(name, version)

    def of_step(self, namespace: str, step: EnsembleStep) -> ServedModel:
        """Return the model of a step of an ensemble in this namespace. Raises as `find`."""
        version = None if step.model_version == -1 else step.model_version
        if step.model_namespace:
            return self._find_in(ModelId(step.model_namespace, step.model_name), version)
        return self.find_from(namespace, step.model_name, version)

    def served(self, model: ModelId) -> dict[int, ServedModel]:
        """Return the versions of a model that take requests; none if it is unknown."""
        return dict(self._models.get(model, {}))

    def versions(self, name: str) -> list[int]:
        """Return the versions that requests find under a name, in ascending order. Raises as `find`."""
        self.find(name, None)
        return list(self._served[name])

    def selected(self, name: str, version: int | None) -> list[ServedModel]:
        """Return all versions, those of one model, or one, for statistics. Raises InvalidRequest as Triton does."""
        self.check_started()
        if not name:
            return sorted(self, key=lambda model: (model.id, model.version))
        versions = self._served.get(name)
        if not versions:
            raise InvalidRequest(f"requested model '{name}' is not available{_after(self.unserved(name))}")
        if version is None:
            return list(versions.values())
        if version not in versions:
            raise InvalidRequest(f"requested model version is not available for model '{name}'")
        return [versions[version]]

    def records(self) -> Mapping[ModelId, Mapping[int, VersionRecord]]:
        """Return the state of every version that was ever requested to load."""
        return self._records

    def note(self, model: ModelId, version: int, state: VersionState, reason: str = "") -> None:
        """Set the state of a version without changing what is served."""
        self._record(model, version, VersionRecord(state, reason))

    def note_unread(self, model: ModelId, reason: str, *, tolerated: bool) -> None:
        """Set the state of a model whose configuration could not be read.

        `tolerated`: the server can be ready nevertheless, as Triton is with a folder that is not a valid model.
        """
        self._record(model, 1, VersionRecord(VersionState.UNAVAILABLE, reason, unread=True, tolerated=tolerated))

    def _record(self, model: ModelId, version: int, record: VersionRecord) -> None:
        if model not in self._records:
            self._records[model] = {}
            self._ids.setdefault(model.name, []).append(model)
        self._records[model][version] = record
        self._update_name(model.name)

    def clear_failures(self, model: ModelId) -> None:
        """Mark the failed versions of a model as unloaded: no load would try them now."""
        for version, record in self._records.get(model, {}).items():
            if record.failed:
                self.note(model, version, VersionState.UNAVAILABLE, UNLOADED)

    @property
    def any_failed(self) -> bool:
        """Whether a model that should be served is not, apart from exempt ones."""
        return any(
            record.failed and not record.tolerated
            for model, versions in self._records.items()
            if model not in self._exempt
            for record in versions.values()
        )

    def exempt(self, model: ModelId) -> None:
        """Keep a failure of the load that begins now from making the server not ready, unless the model had failed."""
        if not any(record.failed for record in self._records.get(model, {}).values()):
            self._exempt.add(model)

    def check_started(self) -> None:
        """Raise Unavailable if the server could not read its repository at start."""
        if self.start_failed:
            raise Unavailable("Server not ready")

    def publish(self, model: ModelId, versions: Mapping[int, ServedModel]) -> list[ServedModel]:
        """Replace the served versions of a model atomically. Returns those that were served until now."""
        old = list(self._models.get(model, {}).values())
        if versions:
            self._models[model] = dict(sorted(versions.items()))
            self._exempt.discard(model)
        else:
            self._models.pop(model, None)
        for version in versions:
            self.note(model, version, VersionState.READY)
        self._update_name(model.name)
        self._clear_caches(model.name, [served for served in old if served not in versions.values()])
        if self.on_publish is not None:
            self.on_publish()
        return old

    def forget(self, model: ModelId) -> None:
        """Drop the records of a model that was removed from the repository."""
        self._exempt.discard(model)
        if self._records.pop(model, None) is not None:
            self._ids[model.name].remove(model)
        self._update_name(model.name)

    def unserved(self, name: str) -> str:
        """Return why a name is not served: a load in progress or the reason of a failed one; "" if it is unknown."""
        loading = self._loading(name)
        return self._failure(name) if loading is None else loading.text

    def _loading(self, name: str) -> LoadState | None:
        return self.loads.state(name, [model for model in self.loads.models() if model.name == name])

    def _failure(self, name: str) -> str:
        """Return which version of a model has failed to load and why, or that it was not loaded; else ""."""
        if not self._ids.get(name) and name in self.names_at_start:
            return f"it is in the repository but not loaded; POST /v2/repository/models/{name}/load loads it"
        for model in self._ids.get(name, ()):
            for version, record in sorted(self._records[model].items(), reverse=True):
                if record.failed:
                    lines = record.reason.strip().splitlines()
                    line = _FOLDERS.sub("", lines[0]) if lines else ""
                    reason = textwrap.shorten(line, _MAX_REASON_CHARACTERS, placeholder=" …")
                    what = "configuration" if record.unread else f"version {version}"
                    return f"{what} of model '{name}' failed to load: {reason}"
        return ""

    def _find_in(self, model: ModelId, version: int | None) -> ServedModel:
        versions = self._models.get(model)
        if not versions:
            raise self._absent(model.name, f"Request for unknown model: '{model}' is not found")
        served = versions.get(max(versions) if version is None else version)
        if served is None:
            raise self._absent(model.name, f"Request for unknown model: '{model}' version {version} is not found")
        return served

    def _update_name(self, name: str) -> None:
        """Update which model requests find under a name."""
        ids = self._namesakes(name)
        versions = self._models.get(ids[0]) if len(ids) == 1 else None
        if versions:
            self._served[name] = versions
            self._newest[name] = versions[max(versions)]
        else:
            self._served.pop(name, None)
            self._newest.pop(name, None)

    def _namesakes(self, name: str) -> list[ModelId]:
        """Return all models of a name that are served or should be.

        A failed one counts: requests for it must not be answered by another model.
        """
        return [
            model
            for model in self._ids.get(name, ())
            if model in self._models
            or any(record.failed or record.state is VersionState.LOADING for record in self._records[model].values())
        ]

    def _lookup_error(self, name: str, version: int | None) -> ConchError:
        self.check_started()
        ids = self._namesakes(name)
        if len(ids) > 1:
            return InvalidRequest(
                f"There are {len(ids)} identifiers of model '{name}' in global map, model namespace must be provided "
                f"to resolve ambiguity. It is in {' and in '.join(model.namespace for model in sorted(ids))}."
            )
        records = [record for model in self._ids.get(name, ()) for record in self._records[model].items()]
        if all(record.unread for _, record in records):
            return self._absent(name, f"Request for unknown model: '{name}' is not found")
        if version is None:
            return self._absent(name, f"Request for unknown model: '{name}' has no available versions")
        unknown = f"Request for unknown model: '{name}' version {version}"
        if any(version == known for known, _ in records):
            absent = self._absent(name, f"{unknown} is not at ready state")
            return absent if isinstance(absent, Unavailable) else Unavailable(absent.message)
        return self._absent(name, f"{unknown} is not found")

    def _absent(self, name: str, message: str) -> ConchError:
        """Return the error of a request for a model that is not served, with the reason behind Triton's message.

        It is Unavailable during a load, after which the model may be served.
        """
        loading = self._loading(name)
        if loading is None:
            return NotFound(message + _after(self._failure(name)))
        return ModelLoading(message + _after(loading.text), retry_after_s=loading.retry_after_s)

    def _clear_caches(self, name: str, removed: Iterable[ServedModel]) -> None:
        """Close the caches of versions that are removed, and clear those of the ensembles that use the model."""
        for served in removed:
            if served.cache is not None:
                served.cache.close()
        changed = {name}
        ensembles = [served for served in self if served.config.is_ensemble]
        while users := [
            ensemble for ensemble in ensembles if any(s.model_name in changed for s in ensemble.config.ensemble_steps)
        ]:
            ensembles = [ensemble for ensemble in ensembles if ensemble not in users]
            changed |= {ensemble.config.name for ensemble in users}
            for ensemble in users:
                if ensemble.cache is not None:
                    ensemble.cache.forget()


def _after(reason: str) -> str:
    return f": {reason}" if reason else ""


class IndexEntry(NamedTuple):
    """One row of the repository index. A model that was never loaded has a name only."""

    name: str
    version: str = ""
    state: str = ""
    reason: str = ""


def index_rows(catalog: Catalog, models: Iterable[ModelId], duplicates: Collection[ModelId] = ()) -> list[IndexEntry]:
    """Return the rows of these models and of all others that the catalog knows, by namespace, name and version.

    One of the `duplicates` has a row without a version unless it is served, as in Triton.
    """
    records, loading = catalog.records(), catalog.loads.models()
    rows: list[IndexEntry] = []
    for model in sorted({*models, *records}):
        served = catalog.served(model)
        if model in duplicates and not served:
            rows.append(IndexEntry(model.name, "", VersionState.UNAVAILABLE.value, _DUPLICATE))
            continue
        for version, record in sorted(records.get(model, {}).items()):
            state, reason = record.state, record.reason
            if state is VersionState.READY and version in served and not served[version].ready:
                state, reason = VersionState.UNAVAILABLE, "not ready: no healthy instance, or a step is not ready"
            rows.append(IndexEntry(model.name, str(version), state.value, reason))
        if model not in records:  # whose configuration has not been read yet, if it is loading
            rows.append(IndexEntry(model.name, "", VersionState.LOADING.value if model in loading else ""))
    return rows
