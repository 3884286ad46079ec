"""The ensembles that are served, and which models they are made of."""

from logging import getLogger

from conch.core.catalog import Catalog
from conch.core.ensembles.ensemble_model import EnsembleModel
from conch.core.loading.builder import ModelBuilder
from conch.core.served_model import ServedModel
from conch.errors import ConfigError, InvalidRequest, NotFound
from conch.model_config import EnsembleStep
from conch.repository.namespaces import ModelId

_log = getLogger(__name__)


class Ensembles:
    """Answers from the catalog; keeps nothing."""

    def __init__(self, catalog: Catalog, builder: ModelBuilder) -> None:
        self._catalog = catalog
        self._builder = builder

    def check_users(self, model: ModelId) -> None:
        """See whether ensembles fit to a model that has just been published; an ensemble, too, to its steps.

        They may have been replaced while it was being loaded.
        """
        for served in self._catalog:
            if isinstance(served, EnsembleModel) and (served.id == model or self._uses(served, model)):
                try:
                    if self._builder.check_steps(served.config, served.id.namespace) != served.flow:
                        raise ConfigError(
                            f"ensemble '{served.config.name}': other steps of it are decoupled than when it was "
                            f"loaded, model '{model}' having been reloaded; load the ensemble anew"
                        )
                    served.misfit = ""
                except ConfigError as error:
                    served.misfit = error.message
                    _log.error("%s", error)

    def use(self, model: ModelId) -> bool:
        """Whether any of them has a step that means this model."""
        return any(self._uses(served, model) for served in self._catalog)

    def meant(self, namespace: str, step: EnsembleStep) -> ModelId | None:
        """Return which model a step of an ensemble in this namespace means now; None if there is none, or several."""
        try:
            return self._catalog.of_step(namespace, step).id
        except (NotFound, InvalidRequest):
            return None

    def _uses(self, served: ServedModel, model: ModelId) -> bool:
        return any(
            step.model_name == model.name and self.meant(served.id.namespace, step) in (model, None)
            for step in served.config.ensemble_steps
        )
