"""Resolve a configuration: fill in defaults, check all rules, and return it as a `ModelConfig`.

A configuration is checked and converted twice, because Triton checks it twice and clients see both results:

* `Repository.read` checks the file alone, when the repository is scanned. An invalid model is `UNAVAILABLE` with a
  reason at once, without its backend. Tensors and instance groups may still be missing.
* `resolve` runs when the model is loaded, after the backend has completed the document from the model file. Only now
  are tensors, defaults of the backend and GPUs known, so only now can the rules about them be checked. It repeats the
  first checks, because auto-completion may have changed any field.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conch.domain.config.defaults import BackendDefaults, fill_defaults
from conch.domain.config.document import from_document
from conch.domain.config.from_proto import to_model_config
from conch.domain.config.limits import check_limits
from conch.domain.config.unsupported import refuse_unsupported, unsupported_notices
from conch.domain.config.validate import validate_configuration, validate_tensors
from conch.domain.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class ResolvedConfig:
    """A complete configuration, and notices for the log about settings without effect, one sentence each."""

    config: ModelConfig
    notices: tuple[str, ...]


def resolve(
    document: Mapping[str, Any], *, backend: BackendDefaults | None, gpus: Sequence[int] = ()
) -> ResolvedConfig:
    """Fill in the defaults of a configuration and check it.

    `document` is `ModelFiles.document`, or the result of `Backend.complete`; `backend` is None for an ensemble; `gpus`
    are the ids of the GPUs of this machine. Raises ConfigError naming the field and what would be right.
    """
    name = document.get("name", "")
    message = from_document(document, f"configuration of model '{name}'")
    check_limits(message, name)
    notices = fill_defaults(message, backend, gpus)
    check_limits(message, name)  # again, because the defaults include devices and counts of instance groups
    validate_configuration(message)
    validate_tensors(message)
    refuse_unsupported(message)
    return ResolvedConfig(to_model_config(message), (*notices, *unsupported_notices(message)))
