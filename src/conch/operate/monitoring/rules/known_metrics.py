"""What is known about a metric that a query selects."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from conch.base.errors import FailureReason
from conch.base.suggestion import closest, did_you_mean
from conch.domain.metrics.catalog import optional_names
from conch.domain.metrics.metric import MetricDefinition

# Labels that Prometheus, its operator and usual scrape configurations add.
TARGET_LABELS = frozenset(
    {"job", "instance", "namespace", "pod", "container", "service", "endpoint", "node", "cluster", "prometheus"}
    | {"region", "zone", "env", "environment", "severity", "replica", "app", "release"}
)
# Labels that every scraped series has.
SCRAPED_LABELS = frozenset({"job", "instance"})
MAX_CELSIUS = 200  # of a device that works
_OWN_PREFIXES = ("conch_", "nv_")
# Other exporters have metrics with these prefixes that Conch lacks.
_SHARED_PREFIXES = ("vllm:", "DCGM_FI_")
_DCGM_PREFIXES = ("DCGM_FI_DEV_", "DCGM_FI_PROF_")
_MIN_SIMILARITY = 0.75
_OF_PROMETHEUS = {
    "up": MetricDefinition("up", "gauge", "1 if the last scrape of the target succeeded.", unit="ratio"),
    **{
        name: MetricDefinition(name, "gauge", "Of the last scrape.")
        for name in ("scrape_duration_seconds", "scrape_samples_scraped", "scrape_samples_post_metric_relabeling")
    },
    "ALERTS": MetricDefinition("ALERTS", "gauge", "Pending and firing alerts.", ("alertname", "alertstate")),
}
# Metric → label → all of its values.
_LABEL_VALUES = {
    "nv_inference_request_failure": {"reason": frozenset(reason.value for reason in FailureReason)},
    **{
        f"conch_{what}": {"enforced": frozenset({"true", "false"})}
        for what in ("request_rate_limit", "token_rate_limit", "limit_exceeded_total")
    },
}
_OF_KUBERNETES: dict[str, dict[str, frozenset[str]]] = {
    "kube_pod_status_phase": {"phase": frozenset({"Pending", "Running", "Succeeded", "Failed", "Unknown"})},
    "kube_node_status_condition": {"status": frozenset({"true", "false", "unknown"})},
    "kube_persistentvolumeclaim_status_phase": {"phase": frozenset({"Lost", "Bound", "Pending"})},
    "ALERTS": {"alertstate": frozenset({"pending", "firing"})},
}
# Suffixes of metrics whose values are 0 or 1, by the conventions of exporters.
_STATES = ("_up", "probe_success", "_info", "_last_reload_successful")
# Names in articles that no exporter has.
_NOT_EXPORTED = {
    "kube_annotations": "kube-state-metrics has kube_deployment_annotations, kube_pod_annotations and the like, with"
    " the annotations that --metric-annotations-allowlist names",
}


@dataclass(frozen=True, slots=True)
class KnownMetric:
    """A metric as queries see it. `part` is the suffix of a histogram's or summary's series, "" for others."""

    definition: MetricDefinition
    part: str = ""

    @property
    def is_counter(self) -> bool:
        """Whether the series only grow."""
        return self.definition.kind == "counter" or self.part != ""

    @property
    def labels(self) -> frozenset[str]:
        """Labels that every series has, with those of its target."""
        extra = {"le"} if self.part == "_bucket" else set[str]()
        if self.definition.kind == "summary" and not self.part:
            extra = {"quantile"}
        return frozenset(self.definition.labels) | SCRAPED_LABELS | extra

    @property
    def range(self) -> tuple[float, float]:
        """Smallest and largest value."""
        definition = self.definition
        if definition.kind == "gauge":
            if definition.unit == "ratio" or definition.name.endswith(("_up", "_ready")):
                return 0, 1
            if definition.unit == "percent":
                return 0, 100
            if definition.unit == "celsius":
                return -273.15, MAX_CELSIUS
            if definition.name.startswith("DCGM_FI_DEV_") and "TEMP" in definition.name:
                return -273.15, MAX_CELSIUS
        return 0, float("inf")


class MetricTable:
    """The metrics that rules can use: those of the catalogue, and of Prometheus itself.

    `added` are metrics that the user's exporters have, besides. Without `optional_counters` the fields of DCGM that no
    exporter has by default are unknown.
    """

    def __init__(
        self,
        catalog: Mapping[str, MetricDefinition],
        target_labels: frozenset[str] = TARGET_LABELS,
        added: frozenset[str] = frozenset(),
        *,
        optional_counters: bool = True,
    ) -> None:
        self._catalog = {**_OF_PROMETHEUS, **catalog}
        self.target_labels = target_labels
        self._added, self._optional_counters = added, optional_counters
        self._metric_labels = {
            label for metric in self._catalog.values() for label in (*metric.labels, *metric.optional_labels)
        } | {"le", "quantile"}

    def find(self, name: str) -> KnownMetric | None:
        """Return a metric by the name of its series; None if it is unknown."""
        if name in optional_names() and not self._optional_counters and name not in self._added:
            return None
        if definition := self._catalog.get(name):
            return KnownMetric(definition)
        for suffix in ("_bucket", "_sum", "_count"):
            definition = self._catalog.get(name.removesuffix(suffix)) if name.endswith(suffix) else None
            if definition and (
                definition.kind == "histogram" or (definition.kind == "summary" and suffix != "_bucket")
            ):
                return KnownMetric(definition, suffix)
        # OpenMetrics adds the suffix to counters whose names lack it.
        definition = self._catalog.get(name.removesuffix("_total"))
        return KnownMetric(definition) if definition and definition.kind == "counter" else None

    def may_be_added(self, label: str, metric: KnownMetric) -> bool:
        """Return whether a scrape configuration may add a label: it is none of a metric, nor a misspelt one."""
        if label in self._metric_labels:
            return False
        return closest(label, metric.labels, _MIN_SIMILARITY) is None

    def is_own(self, name: str) -> bool:
        """Return whether a name is one that the catalogue would have if it existed."""
        if name in self._added:
            return False
        if not self._optional_counters and name.startswith(_DCGM_PREFIXES):
            return True
        # A counter of the catalogue without its suffix.
        return name.startswith(_OWN_PREFIXES) or f"{name}_total" in self._catalog

    def is_shared(self, name: str) -> bool:
        """Return whether a name is one that the catalogue has if Conch exports the metric, though others may."""
        return name.startswith(_SHARED_PREFIXES) and name not in self._added

    def suggestion(self, name: str) -> str:
        """Return a hint at a metric that is meant, or ""."""
        if name in _NOT_EXPORTED:
            return f"; {_NOT_EXPORTED[name]}"
        if f"{name}_total" in self._catalog:
            return f"; did you mean '{name}_total'?"
        names = [
            f"{metric.name}{suffix}"
            for metric in self._catalog.values()
            for suffix in (("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",))
        ]
        if not self._optional_counters and name.startswith(_DCGM_PREFIXES):
            names = [name for name in names if name not in optional_names()]
            hint = did_you_mean(name, names, cutoff=_MIN_SIMILARITY)
            return f"{hint}; no exporter has it by default: if your counter file names it, give --metric {name}"
        return did_you_mean(name, names, cutoff=_MIN_SIMILARITY)

    def label_values(self, name: str) -> Mapping[str, frozenset[str]]:
        """Return all values of labels of a metric, where they are known."""
        return _OF_KUBERNETES.get(name) or _LABEL_VALUES.get(name, {})

    def value_range(self, name: str) -> tuple[float, float]:
        """Return the smallest and largest value of a metric, by its name if no more is known."""
        if metric := self.find(name):
            return metric.range
        if name.endswith(_STATES) and ":" not in name:
            return 0, 1
        counts = name.endswith(("_total", "_bucket", "_count", "_bytes", "_seconds_sum")) and ":" not in name
        return (0, inf) if counts else (-inf, inf)

    def is_absent_everywhere(self, name: str) -> bool:
        """Return whether no exporter has a metric of this name."""
        return name in _NOT_EXPORTED
