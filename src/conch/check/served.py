"""What the models of a path are and expose, for the rules about files beside them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from conch.check.python.metrics import DeclaredMetric


@dataclass(frozen=True, slots=True)
class Served:
    """The names of models, none if the path has no repository, and the custom metrics of Python code by name."""

    models: frozenset[str] = frozenset()
    metrics: Mapping[str, DeclaredMetric] = field(default_factory=dict)
