"""How many requests of each stage one request of an ensemble causes: the depth factor of its limits."""

from collections.abc import Callable
from typing import NamedTuple

from conch.base.errors import ConchError
from conch.domain.model_config import EnsembleStep, ModelConfig
from conch.server.core.served_model import ServedModel


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
    found: dict[ServedModel, StageRequests] = {}
    _add_stages(model, 1, True, of_step, found)
    return found


def _add_stages(
    model: ServedModel,
    times: int,
    exact: bool,
    of_step: Callable[[str, EnsembleStep], ServedModel],
    found: dict[ServedModel, StageRequests],
) -> None:
    config = model.config
    multiplied = _behind_decoupled(config, model, of_step)
    for number, step in enumerate(config.ensemble_steps):
        try:
            stage = of_step(model.id.namespace, step)
        except ConchError:  # it has been unloaded, so the ensemble is not ready
            continue
        once = exact and number not in multiplied
        known = found.get(stage, StageRequests(0, True))
        found[stage] = StageRequests(known.number + times, known.exact and once)
        _add_stages(stage, times, once, of_step, found)


def _behind_decoupled(
    config: ModelConfig, model: ServedModel, of_step: Callable[[str, EnsembleStep], ServedModel]
) -> set[int]:
    """Return the numbers of the steps that run once for each response of a decoupled step."""
    tensors: set[str] = set()
    behind: set[int] = set()
    changed = True
    while changed:
        changed = False
        for number, step in enumerate(config.ensemble_steps):
            multiplied = any(tensor in tensors for tensor in step.input_map.values())
            if multiplied and number not in behind:
                behind.add(number)
                changed = True
            if (multiplied or _is_decoupled(model, step, of_step)) and not tensors.issuperset(step.output_map.values()):
                tensors.update(step.output_map.values())
                changed = True
    return behind


def _is_decoupled(model: ServedModel, step: EnsembleStep, of_step: Callable[[str, EnsembleStep], ServedModel]) -> bool:
    try:
        return of_step(model.id.namespace, step).config.decoupled
    except ConchError:
        return False
