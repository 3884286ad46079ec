"""The definition of a metric."""

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["counter", "gauge", "histogram", "summary"]
# Units of values. "" is a plain number or a count of what the metric's name says. Conch's own metrics have base units;
# those of Triton and DCGM keep theirs.
Unit: TypeAlias = Literal[
    "",
    "seconds",
    "milliseconds",
    "microseconds",
    "nanoseconds",
    "bytes",
    "mebibytes",
    "bytes_per_second",
    "megabytes_per_second",
    "ratio",
    "percent",
    "celsius",
    "watts",
    "joules",
    "millijoules",
    "hertz",
    "megahertz",
    "tokens",
    "requests_per_second",
    "tokens_per_second",
    "timestamp_seconds",
]

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
    `help` is one sentence.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    unit: Unit = ""
    optional_labels: tuple[str, ...] = ()
