"""The definition of a metric, and units."""

import re
from dataclasses import dataclass
from fractions import Fraction
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


@dataclass(frozen=True, slots=True)
class UnitForm:
    """A unit is `factor` base units of its dimension. `grafana` is its id in Grafana, "" if Grafana has none."""

    dimension: str
    factor: Fraction
    grafana: str


_ONE = Fraction(1)
# "" is a plain number, or a count of what the metric's name says.
UNITS: dict[str, UnitForm] = {
    "": UnitForm("count", _ONE, "short"),
    "seconds": UnitForm("time", _ONE, "s"),
    "milliseconds": UnitForm("time", Fraction(1, 1000), "ms"),
    "microseconds": UnitForm("time", Fraction(1, 10**6), "µs"),
    "nanoseconds": UnitForm("time", Fraction(1, 10**9), "ns"),
    "bytes": UnitForm("data", _ONE, "bytes"),
    "mebibytes": UnitForm("data", Fraction(2**20), "mbytes"),
    "bytes_per_second": UnitForm("data rate", _ONE, "binBps"),
    "megabytes_per_second": UnitForm("data rate", Fraction(1_024_000), ""),  # DCGM's: KiB/s divided by 1000
    "ratio": UnitForm("ratio", _ONE, "percentunit"),
    "percent": UnitForm("ratio", Fraction(1, 100), "percent"),
    "celsius": UnitForm("temperature", _ONE, "celsius"),
    "watts": UnitForm("power", _ONE, "watt"),
    "joules": UnitForm("energy", _ONE, "joule"),
    "millijoules": UnitForm("energy", Fraction(1, 1000), ""),
    "hertz": UnitForm("frequency", _ONE, "hertz"),
    "megahertz": UnitForm("frequency", Fraction(10**6), ""),
    "tokens": UnitForm("tokens", _ONE, "short"),
    "requests_per_second": UnitForm("request rate", _ONE, "reqps"),
    "tokens_per_second": UnitForm("token rate", _ONE, "cps"),
    "timestamp_seconds": UnitForm("point in time", _ONE, "dateTimeAsIso"),
}


def conversion(source: str, target: str) -> Fraction:
    """Return by what a value in the source unit is multiplied to get it in the target unit. Raises ValueError."""
    if UNITS[source].dimension != UNITS[target].dimension:
        raise ValueError(f"{source or 'a count'} is not convertible to {target or 'a count'}")
    return UNITS[source].factor / UNITS[target].factor
