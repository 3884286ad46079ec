"""Which dimensions a run searches: the chosen knobs, or those that suit the models. Pure."""

from collections.abc import Mapping, Sequence

from conch.measure.tune.knobs import KNOBS, LOAD, Document, KnobError, current_settings, dimension, is_ensemble
from conch.measure.tune.settings import TuneSettings
from conch.measure.tune.space import Dimension, Space, Value
from conch.measure.tune.trials.deployment import SEPARATOR

_INSTANCES = "instances"
_BATCH = "max_batch_size"


def plan_space(
    settings: TuneSettings,
    documents: Mapping[str, Document],
    cores: int,
    narrow: str | None = None,
    engines: Sequence[str] = (),
) -> Space:
    """Return the space: the load, and the knobs of each model in `documents`.

    `narrow` is the bottleneck of a model with stages: by default it gets all knobs, other stages only their number of
    instances. `engines` are models whose model.json can be written. Raises KnobError for values or knobs that no model
    has.
    """
    limit = settings.max_instances or 2 * cores
    levels: tuple[Value, ...] = settings.trial.rates or settings.trial.concurrency
    # A stage must take the batches of its ensemble.
    least_batch = int(documents[settings.model].get(_BATCH, 0)) if is_ensemble(documents[settings.model]) else 0
    dimensions = [Dimension(LOAD, levels, reloads=False)]
    for name, document in documents.items():
        own = name == settings.model
        chosen = settings.knobs.get("" if own else name)
        knobs = dict(chosen) if chosen is not None else _default_knobs(settings, name, own=own, narrow=narrow)
        for knob, values in knobs.items():
            _check(knob, values, name, document, engines)
            found = dimension(knob, document, cores, values)
            if found is None:
                if chosen is not None and not is_ensemble(document):
                    owners = " and ".join(KNOBS[knob].backends or ("other models",))
                    raise KnobError(f"model '{name}' has no knob '{knob}'; it is a knob of {owners}")
                continue
            if knob == _INSTANCES and values is None:
                current = KNOBS[knob].read(document)
                found = Dimension(knob, tuple(v for v in found.values if v == current or int(str(v)) <= limit))
            if knob == _BATCH and values is None and not own:
                found = Dimension(knob, tuple(v for v in found.values if int(str(v)) >= least_batch) or found.values)
            if len(found.values) > 1 or chosen is not None:
                label = knob if own else f"{name}{SEPARATOR}{knob}"
                dimensions.append(Dimension(label, found.values, found.ordered, found.reloads))
    return Space(tuple(dimensions))


def _default_knobs(
    settings: TuneSettings, name: str, *, own: bool, narrow: str | None
) -> dict[str, tuple[Value, ...] | None]:
    if any(model for model in settings.knobs if model) and not own:
        return {}  # the user chose stages
    if narrow is not None and name != narrow:
        return {_INSTANCES: None}
    return {knob.name: None for knob in KNOBS.values() if knob.default}


def _check(knob: str, values: tuple[Value, ...] | None, model: str, document: Document, engines: Sequence[str]) -> None:
    if knob in KNOBS and KNOBS[knob].engine and KNOBS[knob].applies(document):
        if values is None:
            raise KnobError(f"knob '{knob}' needs values, such as {knob}=16,64")
        if model not in engines:
            raise KnobError(
                f"knob '{knob}' stands in the engine's model.json, which cannot be sent to a server: "
                "--repository names the local folder of the repository"
            )


def current_point_settings(
    space: Space, model: str, documents: Mapping[str, Document], load: Value
) -> dict[str, Value]:
    """Return the values of the current configuration for each dimension."""
    found: dict[str, Value] = {LOAD: load}
    for each in space.dimensions:
        stage, separator, knob = each.name.partition(SEPARATOR)
        owner, name = (stage, knob) if separator else (model, each.name)
        if owner in documents:
            known = current_settings(documents[owner], [name])
            if name in known:
                found[each.name] = known[name]
    return found
