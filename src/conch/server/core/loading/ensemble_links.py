"""Links between the ensembles that are served and the models that their steps use."""

from logging import getLogger

from conch.base.errors import ConfigError, InvalidRequest, NotFound
from conch.domain.model_config import EnsembleStep
from conch.server.core.catalog import Catalog
from conch.server.core.ensembles.ensemble_model import EnsembleModel
from conch.server.core.loading.builder import ModelBuilder
from conch.server.core.served_model import ServedModel
from conch.server.repository.namespaces import ModelId

_log = getLogger(__name__)


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
