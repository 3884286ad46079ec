"""Models that are in no repository, made of uploaded files: clients choose their names, so there may be any number."""

from collections.abc import Iterable

from conch.core.catalog import Catalog, VersionState
from conch.repository.namespaces import ModelId

# So many that are not served any more, or never were, the index keeps.
MAX_UPLOADED_MODELS = 1000


class UploadedModels:
    """Bounds what the catalog keeps of them. Belongs to the event loop's thread."""

    def __init__(self, catalog: Catalog, most: int = MAX_UPLOADED_MODELS) -> None:
        self._catalog = catalog
        self._most = most
        self._models: dict[ModelId, None] = {}  # the oldest first

    def add(self, models: Iterable[ModelId]) -> None:
        """Note models; beyond the bound the oldest of those that are not served are forgotten."""
        self._models |= dict.fromkeys(models)
        for model in list(self._models)[: max(len(self._models) - self._most, 0)]:
            states = {record.state for record in self._catalog.records().get(model, {}).values()}
            if not self._catalog.served(model) and states <= {VersionState.UNAVAILABLE}:
                del self._models[model]
                self._catalog.forget(model)
