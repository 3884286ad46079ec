"""The definition of a metric."""

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["counter", "gauge", "histogram", "summary"]
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


def is_metric_name(text: str) -> bool:
    """Return whether a text is a valid name of a family in Prometheus."""
    return _NAME.fullmatch(text) is not None


def is_label_name(text: str) -> bool:
    """Return whether a text is a valid name of a label in Prometheus."""
    return _LABEL.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class MetricDefinition:
    """A metric: the name of its family as it stands in `/metrics`, with `_total` where the name has it.

    `labels` are those that every series has, besides the labels that Prometheus adds; `optional_labels` those of some.
    `help` is one sentence. `unit` is of `UNITS`: Conch's own metrics have base units, those of Triton and DCGM keep
    theirs.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    optional_labels: tuple[str, ...] = ()
