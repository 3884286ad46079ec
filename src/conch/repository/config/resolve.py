"""The last step before a model is loaded: defaults filled in, rules checked, the configuration as a value."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conch.backends.base import Backend
from conch.model_config import ModelConfig
from conch.repository.config.defaults import fill_defaults
from conch.repository.config.document import from_document
from conch.repository.config.from_proto import to_model_config
from conch.repository.config.limits import check_limits
from conch.repository.config.unsupported import refuse_unsupported, unsupported_notices
from conch.repository.config.validate import validate_configuration, validate_tensors


@dataclass(frozen=True, slots=True)
class ResolvedConfig:
    """A complete configuration, and what its owner should be told about it (one sentence each, for the log)."""

    config: ModelConfig
    notices: tuple[str, ...]


def resolve(document: Mapping[str, Any], *, backend: Backend | None, gpus: Sequence[int] = ()) -> ResolvedConfig:
    """Make a configuration complete and check it.

    `document` is `ModelFiles.document`, or what `Backend.complete` made of it; `backend` is None for an ensemble;
    `gpus` are the ids of the devices that this machine has.
    Raises ConfigError naming the field and what would be right.
    """
    name = document.get("name", "")
    message = from_document(document, f"configuration of model '{name}'")
    check_limits(message, name)
    notices = fill_defaults(message, backend, gpus)
    check_limits(message, name)  # groups have their devices and counts now
    validate_configuration(message)
    validate_tensors(message)
    refuse_unsupported(message)
    return ResolvedConfig(to_model_config(message), (*notices, *unsupported_notices(message)))
