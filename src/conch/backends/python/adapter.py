"""What runs a model in place of code of the model's own."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Adapter:
    """A module of the child's, which has a `TritonPythonModel`; `arguments` are added to those of its `initialize`."""

    module: str
    arguments: Mapping[str, str]
