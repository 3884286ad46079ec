"""Checks that the steps of an ensemble fit together, when it is loaded.

A mismatch is reported here, with both sides in the message, and not by the first request. Pure functions of
configurations.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from conch.base.errors import ConfigError
from conch.domain.model_config import EnsembleStep, ModelConfig, TensorSpec
from conch.domain.triton_messages import config_datatype


@dataclass(frozen=True, slots=True)
class _End:
    """One end of a connection between two steps: owner, its model, tensor name, datatype and shape."""

    owner: str
    model: str
    name: str
    datatype: str
    shape: tuple[int, ...]
    batched: bool  # whether the first dimension is the batch's
    is_ensembles: bool = False  # declared by the ensemble

    @property
    def dims(self) -> tuple[int, ...]:
        """The shape without the batch."""
        return self.shape[1:] if self.batched else self.shape

    def __str__(self) -> str:
        return f"{self.owner} '{self.name}' {self.datatype}{_dims_text(self.shape)}"


def check_ensemble(ensemble: ModelConfig, models: Sequence[ModelConfig]) -> None:
    """Raise ConfigError naming both ends of the first connection that does not fit.

    `models` are the configurations of the steps' models.
    """
    for number, step in enumerate(ensemble.ensemble_steps):
        config = models[number]
        _check_names(ensemble, number, step, config)
        if config.max_batch_size < ensemble.max_batch_size and config.max_batch_size > 0:
            raise ConfigError(
                f"ensemble {ensemble.name} allows maximum batch size {ensemble.max_batch_size}, but it contains model "
                f"{config.name} which only allows maximum batch size to be {config.max_batch_size}: lower "
                f"max_batch_size of the ensemble to that of step {number}"
            )
    for _, tensor, source, target in _connections(ensemble, models):
        _check_fit(ensemble, tensor, source, target)


def misfit_notices(ensemble: ModelConfig, models: Sequence[ModelConfig]) -> Iterator[str]:
    """Yield a warning for each mismatch that will fail some requests but not all.

    The arguments are those of `check_ensemble`, which must have passed.
    """
    optional = {spec.name for spec in ensemble.inputs if spec.optional}
    for number, step in enumerate(ensemble.ensemble_steps):
        needed = {spec.name for spec in models[number].inputs if not spec.optional}
        for inner, tensor in step.input_map.items():
            if tensor in optional and inner in needed:
                yield (
                    f"ensemble '{ensemble.name}': its input '{tensor}' is optional, but step {number} needs it for "
                    f"input '{inner}' of model '{models[number].name}', which is not: requests without '{tensor}' "
                    "will fail; make both optional or neither"
                )
    if ensemble.max_batch_size > 1:
        yield from _single_item_notices(ensemble, models)


def _single_item_notices(ensemble: ModelConfig, models: Sequence[ModelConfig]) -> Iterator[str]:
    """Yield a warning for each step without batches that can process batches of one item only."""
    limited = {
        number
        for number, _, source, target in _connections(ensemble, models)
        if number < len(models) and source.batched and not target.batched and not _agree(source.shape, target.shape)
    }
    for number in sorted(limited):
        yield (
            f"ensemble '{ensemble.name}': step {number}, model '{models[number].name}', takes no batches: requests of "
            "more than one item will fail; set max_batch_size of the ensemble to 1, or of this model to "
            f"{ensemble.max_batch_size}"
        )


def _connections(ensemble: ModelConfig, models: Sequence[ModelConfig]) -> Iterator[tuple[int, str, _End, _End]]:
    """Yield the step, the tensor, its source and its target of each connection; the outputs are a step after the last.

    The names must have been checked.
    """
    sources = {spec.name: _end("the ensemble's input", spec, ensemble, own=True) for spec in ensemble.inputs}
    for number, step in enumerate(ensemble.ensemble_steps):
        outputs = {spec.name: spec for spec in models[number].outputs}
        for inner, tensor in step.output_map.items():
            sources[tensor] = _end(
                f"step {number}, output of model '{models[number].name}',", outputs[inner], models[number]
            )
    for number, step in enumerate(ensemble.ensemble_steps):
        inputs = {spec.name: spec for spec in models[number].inputs}
        for inner, tensor in step.input_map.items():
            target = _end(f"step {number}, input of model '{models[number].name}',", inputs[inner], models[number])
            yield number, tensor, sources[tensor], target
    for spec in ensemble.outputs:
        yield len(models), spec.name, sources[spec.name], _end("the ensemble's output", spec, ensemble, own=True)


def _end(owner: str, spec: TensorSpec, config: ModelConfig, *, own: bool = False) -> _End:
    batched = config.max_batch_size > 0
    shape = (-1, *spec.dims) if batched else spec.dims
    return _End(owner, config.name, spec.name, spec.datatype, shape, batched, own)


def _check_names(ensemble: ModelConfig, number: int, step: EnsembleStep, config: ModelConfig) -> None:
    for kind, mapping, mapped, specs in (
        ("input", "mapping to", step.input_map, config.inputs),
        ("output", "mapped from", step.output_map, config.outputs),
    ):
        known = dict.fromkeys(spec.name for spec in specs)
        for inner, tensor in mapped.items():
            if inner not in known:
                raise ConfigError(
                    f"in ensemble {ensemble.name}, ensemble tensor {tensor} is {mapping} non-existing {kind} {inner} "
                    f"in model {config.name}: step {number}, whose {kind}s are {', '.join(known) or 'none'}"
                )
    missing = [spec.name for spec in config.inputs if not spec.optional and spec.name not in step.input_map]
    if missing:
        raise ConfigError(
            f"in ensemble {ensemble.name}, input {missing[0]} in model {config.name} is not mapped to any ensemble "
            f"tensors: step {number} requires it"
        )


def _check_fit(ensemble: ModelConfig, tensor: str, source: _End, target: _End) -> None:
    first, second = (target, source) if target.is_ensembles else (source, target)
    if source.datatype != target.datatype:
        what, ours, theirs = "data type", config_datatype(first.datatype), config_datatype(second.datatype)
    elif _agree(source.shape, target.shape) or _agree(source.dims, target.dims):
        return
    else:
        what, ours, theirs = "shape", _dims_text(first.shape), _dims_text(second.shape)
    raise ConfigError(
        f"in ensemble {ensemble.name}, ensemble tensor {tensor}: inconsistent {what}: {ours} is inferred from model "
        f"{first.model} while {theirs} is inferred from model {second.model}: {source}, {target}; "
        + _remedy(source, target)
    )


def _agree(source: Sequence[int], target: Sequence[int]) -> bool:
    """Return whether some tensor has both shapes."""
    return len(source) == len(target) and all(
        -1 in (gives, takes) or gives == takes for gives, takes in zip(source, target, strict=True)
    )


def _dims_text(shape: Sequence[int]) -> str:
    return f"[{','.join(map(str, shape))}]"


def _remedy(source: _End, target: _End) -> str:
    """Return what to change: the ensemble's declaration, or, between two steps, another model that converts."""
    own, other = (source, target) if source.is_ensembles else (target, source)
    if not own.is_ensembles:
        return "insert a model that converts between the two steps, if the configurations of both are correct"
    dims = other.shape
    if own.batched and dims[:1] == (-1,):
        dims = dims[1:]
    return f"declare {own.owner} '{own.name}' with data_type: {config_datatype(other.datatype)} dims: {[*dims]}"
