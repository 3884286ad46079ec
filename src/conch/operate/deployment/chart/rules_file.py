"""The rules as a file of the chart, with a place for each threshold: `@p99@` is replaced by the template.

Templates of Helm cannot be used for them: the annotations of alerts have templates of Prometheus. The rules are made
with thresholds that no other number equals, and where such a number stands, or one that is derived from it, is a place.
"""

import re
from dataclasses import fields

from conch.base.yaml_documents import dump_documents
from conch.operate.deployment.kubernetes.monitoring.release_rules import release_groups, release_rule_file
from conch.operate.deployment.kubernetes.release import Release
from conch.operate.monitoring.promql import duration
from conch.operate.monitoring.rules.thresholds import Thresholds

_RELEASE = Release("@release@", "@namespace@")
_UNIQUE = Thresholds(
    queue_time=0.1237,
    oldest_request=12.347,
    queue_compute_ratio=1.2379,
    failure_ratio=0.05239,
    objective=0.97531,
    p99=1.4567,
    utilization=0.91357,
    scale_up=61.357,
    restarts=3.579,
    unready=137,
    kv_cache=0.87531,
    waiting_requests=13.579,
    ttft=2.3571,
    gpu_temperature=81.357,
    gpu_idle=0.31357,
    gpu_idle_time=4567,
    gpu_memory=0.95713,
)
_IN_DURATIONS = ("unready", "gpu_idle_time")
# Place → number that is derived from a threshold; the template `prometheus-rule.yaml` has the formulas.
_DERIVED = {
    "burnFast": f"{14.4 * (1 - _UNIQUE.objective):.6g}",
    "burn": f"{6 * (1 - _UNIQUE.objective):.6g}",
    "burnSlow": f"{1 - _UNIQUE.objective:.6g}",
    "objectivePercent": f"{_UNIQUE.objective * 100:g}",
    "halfUtilization": f"{_UNIQUE.utilization / 2:.3g}",
}


def rules_file() -> str:
    """Return the groups of rules with places for what the values and the release determine."""
    document = release_rule_file(release_groups(_UNIQUE, _RELEASE), _RELEASE, "@interval@")
    text = dump_documents([document["groups"]])
    for place, number in _places().items():
        text, count = re.subn(rf"(?<![\w.]){re.escape(number)}(?!\w|\.\d)", f"@{place}@", text)
        assert count, f"no rule has the threshold {place}"
    return text


def _places() -> dict[str, str]:
    places = dict(_DERIVED)
    for each in fields(Thresholds):
        value = getattr(_UNIQUE, each.name)
        words = each.name.split("_")
        camel = words[0] + "".join(word.capitalize() for word in words[1:])
        if each.name in _IN_DURATIONS:
            places[camel] = duration(value)
        elif each.name != "objective":
            places[camel] = f"{value:g}"
    return places
