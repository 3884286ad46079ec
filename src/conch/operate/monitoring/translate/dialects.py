"""Which metrics of one vocabulary correspond to which of another, with their units, by `dialects.toml`."""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from conch.domain.metrics.catalog import all_metrics, dcgm_fields
from conch.domain.metrics.metric import Kind, conversion

_FILE = Path(__file__).with_name("dialects.toml")
_CONDITION = re.compile(r'(\w+)="([^"]*)"')

Dialect: TypeAlias = Literal["conch", "dcgm-4.7", "dcgm-legacy", "otel", "triton", "vllm-v0", "vllm-v1"]
DIALECTS: tuple[Dialect, ...] = get_args(Dialect)
# What names of a dialect begin with. A name with such a prefix that no row has is reported.
PREFIXES: dict[Dialect, tuple[str, ...]] = {
    "conch": ("conch_",),
    "dcgm-4.7": ("DCGM_FI_", "DCGM_EXP_"),
    "dcgm-legacy": ("DCGM_FI_", "DCGM_EXP_"),
    "otel": ("gen_ai_", "hw_"),
    "triton": ("nv_",),
    "vllm-v0": ("vllm:",),
    "vllm-v1": ("vllm:",),
}


@dataclass(frozen=True, slots=True)
class DialectSeries:
    """A metric of a dialect. `only` are the label values by which the dialect tells it from others of that name."""

    name: str
    unit: str = ""
    only: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Correspondence:
    """One quantity under the names of dialects. A histogram stands for its `_bucket`, `_sum` and `_count`."""

    kind: Kind
    names: dict[Dialect, DialectSeries]

    def factor(self, source: Dialect, target: Dialect) -> Fraction:
        """Return by what a value of the source is multiplied to get the target's."""
        return conversion(self.names[source].unit, self.names[target].unit)


@cache
def correspondences() -> tuple[Correspondence, ...]:
    """Return all quantities: the fields of DCGM, and the series of `dialects.toml`."""
    elsewhere = _table()["dcgm"]
    fields = [
        {"dcgm-legacy": field.legacy.name, "dcgm-4.7": field.current.name, **elsewhere.get(field.legacy.name, {})}
        for field in dcgm_fields()
    ]
    return tuple(map(_correspondence, (*fields, *_table()["series"])))


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(_FILE.read_text(encoding="utf-8"))


def _correspondence(row: dict[Any, Any]) -> Correspondence:
    """Return a row with the kind and the units of the catalogue; a name that it lacks has the unit of another."""
    texts = dict(row)
    kind = texts.pop("kind", "")
    if "vllm" in texts:
        texts["vllm-v0"] = texts["vllm-v1"] = texts.pop("vllm")
    known = {dialect: kind_and_unit for dialect, text in texts.items() if (kind_and_unit := _kind_and_unit(text))}
    unit: str = next((known[dialect][1] for dialect in ("vllm-v1", "conch") if dialect in known), "")
    names = {
        dialect: DialectSeries(text.partition("{")[0], known[dialect][1] if dialect in known else unit, _only(text))
        for dialect, text in texts.items()
    }
    return Correspondence(kind or next(iter(known.values()))[0], names)


def _kind_and_unit(name: str) -> tuple[Kind, str] | None:
    """Return the kind and the unit of a series in the catalogue; the sum and the count of a histogram are counters."""
    if metric := all_metrics().get(name):
        return metric.kind, metric.unit
    if name.endswith("_count") and name.removesuffix("_count") in all_metrics():
        return "counter", ""
    metric = all_metrics().get(name.removesuffix("_sum"))
    return ("counter", metric.unit) if metric else None


def _only(text: str) -> tuple[tuple[str, str], ...]:
    return tuple(_CONDITION.findall(text.partition("{")[2]))


# The same label under the names of dialects. A label of the source that the target has no name for is reported.
LABELS: tuple[dict[Dialect, str], ...] = (
    {"dcgm-legacy": "Hostname", "dcgm-4.7": "hostname"},
    {"dcgm-legacy": "DCGM_FI_DRIVER_VERSION", "dcgm-4.7": "DCGM_FI_SYSTEM_DRIVER_VERSION"},
    {"dcgm-legacy": "UUID", "dcgm-4.7": "UUID", "conch": "uuid", "otel": "hw_id", "triton": "gpu_uuid"},
    {"dcgm-legacy": "modelName", "dcgm-4.7": "modelName", "conch": "name", "otel": "hw_name"},
    {"dcgm-legacy": "gpu", "dcgm-4.7": "gpu"},
    {"dcgm-legacy": "pci_bus_id", "dcgm-4.7": "pci_bus_id"},
    {"dcgm-legacy": "GPU_I_ID", "dcgm-4.7": "GPU_I_ID"},
    {"dcgm-legacy": "GPU_I_PROFILE", "dcgm-4.7": "GPU_I_PROFILE"},
    {
        "conch": "model",
        "otel": "gen_ai_request_model",
        "triton": "model",
        "vllm-v0": "model_name",
        "vllm-v1": "model_name",
    },
    {"vllm-v1": "engine"},
    {"vllm-v0": "finished_reason", "vllm-v1": "finished_reason"},
)

_SUFFIXES = ("_bucket", "_sum", "_count")


@dataclass(frozen=True, slots=True)
class Counterpart:
    """The series that another corresponds to. New values are `factor` times the old ones.

    `bound_factor` is that of the `le` label of buckets. `required` are label values that the source's selector has for
    this meaning, and which the new one does not have; `added` those that the new one must have.
    """

    name: str
    factor: Fraction = Fraction(1)
    bound_factor: Fraction = Fraction(1)
    required: tuple[tuple[str, str], ...] = ()
    added: tuple[tuple[str, str], ...] = ()


class Untranslatable(Exception):
    """A query has no counterpart. `subject` is the metric or label, and the text the reason."""

    def __init__(self, subject: str, reason: str) -> None:
        super().__init__(reason)
        self.subject = subject


def counterparts(name: str, source: Dialect, target: Dialect) -> list[Counterpart]:
    """Return the counterparts of a series, by its whole name. Several differ in the labels that they require."""
    return [counterpart for row in correspondences() for counterpart in _of_row(row, name, source, target)]


def _of_row(row: Correspondence, name: str, source: Dialect, target: Dialect) -> Iterator[Counterpart]:
    old, new = row.names.get(source), row.names.get(target)
    if old is None or new is None or not name.startswith(old.name):
        return
    suffix = name[len(old.name) :]
    factor = row.factor(source, target)
    if row.kind == "histogram" and suffix in _SUFFIXES:
        value = factor if suffix == "_sum" else Fraction(1)
        bound = factor if suffix == "_bucket" else Fraction(1)
        yield Counterpart(new.name + suffix, value, bound, old.only, new.only)
    elif row.kind != "histogram" and not suffix:
        yield Counterpart(new.name, factor, Fraction(1), old.only, new.only)


def belongs(name: str, dialect: Dialect) -> bool:
    """Return whether a name is one of a dialect, known or not."""
    return name.startswith(PREFIXES[dialect])


def reason(name: str, source: Dialect, target: Dialect) -> str:
    """Return why a series has no counterpart."""
    base = next((name.removesuffix(suffix) for suffix in _SUFFIXES if name.endswith(suffix)), name)
    if source.partition("-")[0] == target.partition("-")[0] and (hint := _table()["no_counterpart"].get(base)):
        return f"no counterpart in {target}: {hint}"
    return f"no counterpart in {target}"


def model_label(source: Dialect, target: Dialect) -> str:
    """Return the target's label that names the model, if its metrics are of all models and the source's are not."""
    if not source.startswith("vllm") or target not in ("conch", "triton"):
        return ""
    return next(row[target] for row in LABELS if row.get(source) == "model_name")


def label_name(label: str, source: Dialect, target: Dialect) -> str:
    """Return a label's name in the target. Raises Untranslatable if the target has no such label."""
    for row in LABELS:
        if row.get(source) == label:
            if target not in row:
                raise Untranslatable(label, f"the label has no counterpart in {target}")
            return row[target]
    return label
