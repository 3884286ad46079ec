"""Choose the model to measure, or say which there are."""

from collections.abc import Sequence

from conch.base.errors import ModelLoading
from conch.base.suggestion import did_you_mean
from conch.measure.bench.targets.server_api import ListedModel
from conch.measure.bench.targets.target import TargetError

_MAX_LISTED = 20


def only_model(where: str, models: Sequence[ListedModel] | None) -> str:
    """Return the name of the only ready model. Raises TargetError, which lists the models, and ModelLoading."""
    if models is None:
        raise TargetError(f"{where} does not list its models; name one with --model")
    ready = sorted({model.name for model in models if model.ready})
    if len(ready) == 1:
        return ready[0]
    if ready:
        raise TargetError(f"{where} has {len(ready)} models; choose one with --model: {_joined(ready)}")
    _check_loading(models)
    if models:
        raise TargetError(f"{where} has no ready model: {_joined([f'{row.name} ({row.reason})' for row in models])}")
    raise TargetError(f"{where} has no models")


def unknown_model(where: str, name: str, version: str, models: Sequence[ListedModel] | None) -> TargetError:
    """Return the error for a model without metadata: it is not ready, or the server does not have it.

    Raises ModelLoading for one that is being loaded.
    """
    rows = list(models or ())
    of_name = [row for row in rows if row.name == name]
    if of_name and not any(row.ready for row in of_name):
        _check_loading(of_name)
        row = of_name[-1]
        if row.reason == "not loaded":
            return TargetError(
                f"model '{name}' is in the repository of {where} but not loaded; restart the server, or, in model "
                f"control mode explicit, load it: POST /v2/repository/models/{name}/load"
            )
        return TargetError(f"model '{name}' of {where} is not ready: {row.reason}")
    ready = sorted({row.name for row in rows if row.ready})
    if of_name and version:
        versions = _joined(sorted({row.version for row in of_name if row.version}))
        return TargetError(f"model '{name}' of {where} has no version {version}; it has {versions}")
    listed = f" Ready models: {_joined(ready)}" if ready else ""
    return TargetError(f"{where} has no model '{name}'{did_you_mean(name, ready, '.') if listed else ''}{listed}")


def _check_loading(rows: Sequence[ListedModel]) -> None:
    """Raise ModelLoading if one of these models is being loaded."""
    for row in rows:
        if row.loading:
            raise ModelLoading(f"model '{row.name}' is loading")


def _joined(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MAX_LISTED])
    return shown if len(names) <= _MAX_LISTED else f"{shown} and {len(names) - _MAX_LISTED} others"
