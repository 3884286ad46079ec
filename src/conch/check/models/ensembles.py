"""Check ensembles against the other models of the repository, with the server's code."""

import re
from collections.abc import Iterator, Mapping

from conch.base.errors import ConchError, ConfigError
from conch.base.suggestion import did_you_mean
from conch.check.finding import Finding, Place, Related
from conch.check.models.checked_model import CheckedModel
from conch.domain.files.model_folder import chosen_versions
from conch.domain.model_config import EnsembleStep, ModelConfig
from conch.domain.scheduling.flow import flow_of
from conch.server.core.ensembles.contract import check_ensemble, misfit_notices


def check_ensembles(models: Mapping[str, CheckedModel | None]) -> Iterator[Finding]:
    """Check every ensemble among the models of one server; None is a model that could not be read."""
    for model in models.values():
        if model is not None and model.config.is_ensemble:
            yield from _check(model, models)


def _check(model: CheckedModel, models: Mapping[str, CheckedModel | None]) -> Iterator[Finding]:
    steps = model.config.ensemble_steps
    configs: list[ModelConfig] = []
    for number, step in enumerate(steps):
        place = model.folder.field(f"ensemble_scheduling.step[{number}].model_name")
        inner = models.get(step.model_name)
        if step.model_name not in models:
            others = sorted(models.keys() - {model.name})
            known = ", ".join(others) or "none"
            message = f"ensemble '{model.name}': step {number} names model '{step.model_name}', which does not exist"
            message += did_you_mean(step.model_name, others)
            yield Finding("ensemble-missing-model", place, message, f"Other models of the repository: {known}.")
        elif inner is None or not (inner.knows_tensors or inner.config.is_ensemble):
            message = f"ensemble '{model.name}' was not checked: the tensors of model '{step.model_name}' are unknown"
            yield Finding("ensemble-unchecked", place, message)
        else:
            configs.append(inner.config)
            if wrong := _version_not_served(step, inner):
                yield Finding("ensemble-missing-model", place, f"ensemble '{model.name}': step {number} needs {wrong}")
    if len(configs) < len(steps):
        return
    try:
        check_ensemble(model.config, configs)
        flow_of(model.config, configs)
    except ConfigError as error:
        sides = _sides(error.message, models)
        yield Finding("ensemble-contract", _step_of(model, error.message), error.message, related=sides)
        return
    for notice in misfit_notices(model.config, configs):
        yield Finding("ensemble-optional", _step_of(model, notice), notice, related=_sides(notice, models))


def _version_not_served(step: EnsembleStep, inner: CheckedModel) -> str:
    if step.model_version < 0:
        return ""
    try:
        served = chosen_versions(inner.config, inner.files.versions_on_disk)
    except ConchError:
        return ""  # a finding of that model
    if step.model_version in served:
        return ""
    return f"version {step.model_version} of model '{step.model_name}', which serves {', '.join(map(str, served))}"


def _step_of(model: CheckedModel, message: str) -> Place:
    match = re.search(r"step (\d+)", message)
    if match is None:
        return model.folder.locate(message)
    return model.folder.field(f"ensemble_scheduling.step[{match[1]}].model_name")


def _sides(message: str, models: Mapping[str, CheckedModel | None]) -> tuple[Related, ...]:
    """Return the tensors of other models that the message names, or at least the models."""
    related: dict[Place, Related] = {}
    tensors = re.findall(r"(input|output) of model '([^']+)', '([^']+)'", message)
    for kind, name, tensor in tensors or [("", name, "") for name in re.findall(r"model '([^']+)'", message)]:
        model = models.get(name)
        if model is not None:
            place = model.folder.locate(f"'{tensor}'" if tensor else "input")
            related[place] = Related(place, f"{kind} '{tensor}' of model '{name}'" if tensor else f"model '{name}'")
    return tuple(related.values())
