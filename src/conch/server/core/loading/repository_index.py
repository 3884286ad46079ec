"""The repository index: the state of every model and of every version that was ever requested."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from conch.server.core.catalog import Catalog, VersionState
from conch.server.repository.namespaces import ModelId

_DUPLICATE = "model appears in two or more repositories"


@dataclass(frozen=True, slots=True)
class IndexEntry:
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
