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
    """One end of a connection between two steps: owner, tensor name, datatype and shape."""

    owner: str
    name: str
    datatype: str
    shape: tuple[int, ...]
    batched: bool  # whether the first dimension is the batch's
    is_ensembles: bool = False  # declared by the ensemble

    def __str__(self) -> str:
        return f"{self.owner} '{self.name}' {self.datatype}[{','.join(map(str, self.shape))}]"


def check_ensemble(ensemble: ModelConfig, models: Sequence[ModelConfig]) -> None:
    """Raise ConfigError naming both ends of the first connection that does not fit.

    `models` are the configurations of the steps' models.
    """
    sources = {spec.name: _end("the ensemble's input", spec, ensemble, own=True) for spec in ensemble.inputs}
    inputs = [{spec.name: spec for spec in config.inputs} for config in models]
    for number, step in enumerate(ensemble.ensemble_steps):
        config = models[number]
        _check_names(ensemble, number, step, config)
        if config.max_batch_size < ensemble.max_batch_size and config.max_batch_size > 0:
            raise ConfigError(
                f"ensemble '{ensemble.name}' allows maximum batch size {ensemble.max_batch_size}, "
                f"but its step {number}, model '{config.name}', allows {config.max_batch_size}: "
                "lower max_batch_size of the ensemble to it"
            )
        outputs = {spec.name: spec for spec in config.outputs}
        for inner, tensor in step.output_map.items():
            sources[tensor] = _end(f"step {number}, output of model '{config.name}',", outputs[inner], config)
    for number, step in enumerate(ensemble.ensemble_steps):
        config = models[number]
        for inner, tensor in step.input_map.items():
            target = _end(f"step {number}, input of model '{config.name}',", inputs[number][inner], config)
            _check_fit(ensemble, tensor, sources[tensor], target)
    for spec in ensemble.outputs:
        _check_fit(ensemble, spec.name, sources[spec.name], _end("the ensemble's output", spec, ensemble, own=True))


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


def _end(owner: str, spec: TensorSpec, config: ModelConfig, *, own: bool = False) -> _End:
    batched = config.max_batch_size > 0
    shape = (-1, *spec.dims) if batched else spec.dims
    return _End(owner, spec.name, spec.datatype, shape, batched, own)


def _check_names(ensemble: ModelConfig, number: int, step: EnsembleStep, config: ModelConfig) -> None:
    for kind, mapped, specs in (
        ("input", step.input_map, config.inputs),
        ("output", step.output_map, config.outputs),
    ):
        known = dict.fromkeys(spec.name for spec in specs)
        for inner, tensor in mapped.items():
            if inner not in known:
                raise ConfigError(
                    f"in ensemble {ensemble.name}, ensemble tensor {tensor} is mapping to non-existing {kind} {inner} "
                    f"in model {config.name}: step {number}, whose {kind}s are {', '.join(known) or 'none'}"
                )
    missing = [spec.name for spec in config.inputs if not spec.optional and spec.name not in step.input_map]
    if missing:
        raise ConfigError(
            f"ensemble '{ensemble.name}': step {number} has no mapping for input '{missing[0]}' "
            f"of model '{config.name}', which requires it"
        )


def _check_fit(ensemble: ModelConfig, tensor: str, source: _End, target: _End) -> None:
    where = f"ensemble '{ensemble.name}': tensor '{tensor}' does not fit"
    if source.datatype != target.datatype:
        raise ConfigError(
            f"{where}, inconsistent data type: {source} gives {source.datatype}, {target} takes {target.datatype}; "
            + _remedy(source, target)
        )
    if len(source.shape) != len(target.shape):
        raise ConfigError(
            f"{where}, inconsistent shape: {source} and {target} differ in rank; " + _remedy(source, target)
        )
    for axis, (gives, takes) in enumerate(zip(source.shape, target.shape, strict=True)):
        if -1 not in (gives, takes) and gives != takes:
            raise ConfigError(
                f"{where}, inconsistent shape: {source} and {target} differ in dimension {axis}, {gives} against "
                f"{takes}; " + _remedy(source, target)
            )


def _remedy(source: _End, target: _End) -> str:
    """Return what to change: the ensemble's declaration, or, between two steps, another model that converts."""
    own, other = (source, target) if source.is_ensembles else (target, source)
    if not own.is_ensembles:
        return "insert a model that converts between the two steps, if the configurations of both are correct"
    dims: tuple[int, ...] = other.shape
    if own.batched:
        if not dims or dims[0] != -1:
            return "set max_batch_size of the ensemble to 0, since this step takes no batches"
        dims = dims[1:]
    elif other.batched:
        return f"set max_batch_size of the ensemble to that of the step, or declare it with dims: {[*dims]}"
    return f"declare {own.owner} '{own.name}' with data_type: {config_datatype(other.datatype)} dims: {[*dims]}"
