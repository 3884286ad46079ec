"""Nested ensembles: the requests of each stage that one request causes, and bounds on their depth and number.

`stage_requests` is the depth factor of an ensemble's limits; `check_nesting` rejects cycles when one is loaded.
"""

from collections.abc import Callable
from typing import NamedTuple

from conch.base.errors import ConchError, ConfigError, InvalidRequest, NotFound
from conch.domain.model_config import EnsembleStep, ModelConfig
from conch.server.core.catalog import Catalog
from conch.server.core.ensembles.ensemble_model import EnsembleModel
from conch.server.core.served_model import ServedModel
from conch.server.repository.namespaces import ModelId

# Each level adds frames to the stack of a request.
MAX_ENSEMBLE_DEPTH = 16
# Thirty nested ensembles of two steps each would run a billion steps.
MAX_ENSEMBLE_RUNS = 1000


def check_nesting(catalog: Catalog, ensemble: ModelConfig, namespace: str) -> None:
    """Check the steps that an ensemble would run. Steps whose models are not served are skipped.

    Raises ConfigError if it is among its own steps, nests too deep or runs too many steps for one request.
    """
    runs = 0
    known: dict[ModelId, int] = {}
    for number, step in enumerate(ensemble.ensemble_steps):
        try:
            served = catalog.of_step(namespace, step)
        except (NotFound, InvalidRequest):
            continue
        cycle = (
            f"circular dependency between ensembles: step {number} of ensemble '{ensemble.name}', model "
            f"'{step.model_name}', has '{ensemble.name}' among its own steps"
        )
        top = ModelId(namespace, ensemble.name)
        if served.id == top:
            raise ConfigError(cycle)
        runs += _runs(catalog, served.config, served.id, top, cycle, known, 1)
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
    cycle: str,
    known: dict[ModelId, int],
    depth: int,
) -> int:
    """Return how many steps a model runs for one request. `known` caches the result of each ensemble."""
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
            raise ConfigError(cycle)
        total += _runs(catalog, served.config, served.id, top, cycle, known, depth + 1)
    known[model] = total
    return total


class StageRequests(NamedTuple):
    """Requests of a model that one request causes at most, or at least, if a decoupled stage multiplies them."""

    number: int
    exact: bool


def stage_requests(
    model: ServedModel, of_step: Callable[[str, EnsembleStep], ServedModel]
) -> dict[ServedModel, StageRequests]:
    """Return the models below an ensemble, through all levels of nested ones; none for other models.

    Requests for some outputs only, and cached responses, may cause fewer. A model that is not served is left out.
    """
    requests: dict[ServedModel, StageRequests] = {}
    _add_stages(model, 1, True, of_step, requests)
    return requests


def _add_stages(
    model: ServedModel,
    times: int,
    exact: bool,
    of_step: Callable[[str, EnsembleStep], ServedModel],
    requests: dict[ServedModel, StageRequests],
) -> None:
    if not isinstance(model, EnsembleModel):
        return
    for number, step in enumerate(model.config.ensemble_steps):
        try:
            stage = of_step(model.id.namespace, step)
        except ConchError:  # it has been unloaded, so the ensemble is not ready
            continue
        once = exact and not model.flow.levels[number]  # it runs once for each response of a decoupled step otherwise
        known = requests.get(stage, StageRequests(0, True))
        requests[stage] = StageRequests(known.number + times, known.exact and once)
        _add_stages(stage, times, once, of_step, requests)
