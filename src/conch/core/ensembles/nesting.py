"""Ensembles among the steps of ensembles: no circles, and bounds on how deep they nest and how much they multiply."""

from conch.core.catalog import Catalog
from conch.errors import ConfigError, InvalidRequest, NotFound
from conch.model_config import ModelConfig
from conch.repository.namespaces import ModelId

# A request goes down one call after the other into the ensembles among the steps.
MAX_ENSEMBLE_DEPTH = 16
# Thirty ensembles with two steps each, one inside the other, would run a billion.
MAX_ENSEMBLE_RUNS = 1000


def check_nesting(catalog: Catalog, ensemble: ModelConfig, namespace: str) -> None:
    """Check what an ensemble would run. Steps whose models are not served are left out.

    Raises ConfigError if it is among its own steps, nests too deep or runs too many steps for one request.
    """
    runs = 0
    known: dict[ModelId, int] = {}
    for number, step in enumerate(ensemble.ensemble_steps):
        try:
            served = catalog.of_step(namespace, step)
        except (NotFound, InvalidRequest):
            continue
        circle = (
            f"circular dependency: step {number} of ensemble '{ensemble.name}', model '{step.model_name}', "
            f"has '{ensemble.name}' among its own steps"
        )
        top = ModelId(namespace, ensemble.name)
        if served.id == top:
            raise ConfigError(circle)
        runs += _runs(catalog, served.config, served.id, top, circle, known, 1)
    if runs > MAX_ENSEMBLE_RUNS:
        raise ConfigError(
            f"ensemble '{ensemble.name}' runs {runs} steps for each request, those of the ensembles among its steps "
            f"included; {MAX_ENSEMBLE_RUNS} are the most"
        )


def _runs(
    catalog: Catalog,
    config: ModelConfig,
    model: ModelId,
    top: ModelId,
    circle: str,
    known: dict[ModelId, int],
    depth: int,
) -> int:
    """Return how many steps a model runs for one request. Each ensemble is looked at once: `known` has the others."""
    if not config.is_ensemble:
        return 1
    if model in known:
        return known[model]
    if depth >= MAX_ENSEMBLE_DEPTH:
        raise ConfigError(
            f"ensemble '{top.name}' nests ensembles more than {MAX_ENSEMBLE_DEPTH} deep: '{model}' is the last of them"
        )
    total = 0
    for step in config.ensemble_steps:
        try:
            served = catalog.of_step(model.namespace, step)
        except (NotFound, InvalidRequest):
            continue
        if served.id == top:
            raise ConfigError(circle)
        total += _runs(catalog, served.config, served.id, top, circle, known, depth + 1)
    known[model] = total
    return total
