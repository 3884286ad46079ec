"""The metrics of pods that autoscalers read, and their queries: for prometheus-adapter by pod, for KEDA in total.

A pod has a series for each model. The worst model decides: a mean or a sum over models would let idle models hide the
one whose requests wait, and would grow with the number of models. Rates and counts of requests are summed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from conch.operate.monitoring.rules.shipped_alerts import QUEUE_COMPUTE, UTILIZATION


@dataclass(frozen=True, slots=True)
class PodMetric:
    """A metric of pods: the series that it is made of, and how those of one pod become one value."""

    series: str
    aggregation: str
    window: str = ""  # of a rate

    def by(self, labels: str, matchers: str) -> str:
        """Return the query for one value per combination of labels, such as `pod`."""
        selected = f"{self.series}{{{matchers}}}"
        return f"{self.aggregation} by ({labels}) ({f'rate({selected}[{self.window}])' if self.window else selected})"


# The keys are those of PodMetricName.
POD_METRICS: Mapping[str, PodMetric] = {
    QUEUE_COMPUTE: PodMetric(QUEUE_COMPUTE, "max"),
    UTILIZATION: PodMetric(UTILIZATION, "max"),
    "conch_requests_per_second": PodMetric("nv_inference_request_success", "sum", "1m"),
    "nv_inference_pending_request_count": PodMetric("nv_inference_pending_request_count", "sum"),
    "vllm:num_requests_waiting": PodMetric("vllm:num_requests_waiting", "sum"),
    "vllm:kv_cache_usage_perc": PodMetric("vllm:kv_cache_usage_perc", "max"),
}


def adapter_rules() -> list[dict[str, Any]]:
    """Return the rules of prometheus-adapter that serve the metrics in the custom.metrics.k8s.io API."""
    return [
        {
            "seriesQuery": f'{metric.series}{{namespace!="",pod!=""}}',
            "resources": {"overrides": {"namespace": {"resource": "namespace"}, "pod": {"resource": "pod"}}},
            "name": {"as": name},
            "metricsQuery": metric.by("<<.GroupBy>>", "<<.LabelMatchers>>"),
        }
        for name, metric in POD_METRICS.items()
    ]
