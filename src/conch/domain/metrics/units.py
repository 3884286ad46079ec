"""Units of metrics: their dimension, their size in base units, and their names in Grafana."""

from dataclasses import dataclass
from fractions import Fraction


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
