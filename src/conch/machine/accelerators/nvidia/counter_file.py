"""The counter files of dcgm-exporter: which fields are exposed, with which type and help.

A line is `FIELD, type, help`; `#` begins a comment. Both generations of names are understood.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from conch.base.errors import ConfigError
from conch.domain.metrics.dcgm import CURRENT_LABELS, DCGM_FIELDS, LEGACY_LABELS, DcgmField
from conch.domain.metrics.metric import Kind, MetricDefinition

_KINDS: Mapping[str, Kind] = {"gauge": "gauge", "counter": "counter"}
_LABEL = "label"
# Fields that are labels here: the version of the driver. dcgm-exporter has further ones.
_LABEL_FIELDS = {LEGACY_LABELS[1], CURRENT_LABELS[1]}
_FIELDS = {name: field for field in DCGM_FIELDS for name in (field.legacy.name, field.current.name)}


@dataclass(frozen=True, slots=True)
class Counter:
    """A line of the file: a field and the metric as the file describes it."""

    field: DcgmField
    metric: MetricDefinition


@dataclass(frozen=True, slots=True)
class CounterFile:
    """The fields of a file. `unavailable` are names of DCGM that NVML has no value for."""

    counters: Sequence[Counter]
    unavailable: Sequence[str]


def read_counter_file(path: Path) -> CounterFile:
    """Read a file. Raises ConfigError with the line that is not valid."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the counter file {path}: {error}") from error
    return parse_counters(text, str(path))


def parse_counters(text: str, source: str) -> CounterFile:
    """Parse the content of a file; `source` is named in errors. Raises ConfigError."""
    counters: dict[str, Counter] = {}
    unavailable: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.split("#", 1)[0].strip(" ,\t"):
            continue
        place = f"{source}, line {number}"
        name, kind, description = _columns(line, place)
        if kind != _LABEL and kind not in _KINDS:
            raise ConfigError(f"{place}: '{kind}' is not a type of metrics; use gauge, counter or label")
        if not name.startswith("DCGM_"):
            raise ConfigError(f"{place}: '{name}' is not a field of DCGM; their names begin with DCGM_")
        if kind == _LABEL:
            if name not in _LABEL_FIELDS:
                unavailable.append(name)
        elif (field := _FIELDS.get(name)) is None:
            unavailable.append(name)
        else:
            counters[name] = Counter(field, _described(field, name, _KINDS[kind], description))
    if not counters:
        raise ConfigError(f"{source} names no field that NVML has a value for")
    return CounterFile(tuple(counters.values()), tuple(unavailable))


def _columns(line: str, place: str) -> tuple[str, str, str]:
    columns = [column.strip() for column in line.split(",", 2)]
    if len(columns) != 3:
        raise ConfigError(f"{place}: expected three columns, FIELD, type, help; got {line.strip()!r}")
    return columns[0], columns[1], columns[2]


def _described(field: DcgmField, name: str, kind: Kind, description: str) -> MetricDefinition:
    known = field.legacy if name == field.legacy.name else field.current
    return MetricDefinition(name, kind, description or known.help, known.labels, known.unit, known.optional_labels)
