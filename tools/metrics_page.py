"""Write the reference page of all metrics, `docs/reference/metrics.md`: `python -m tools.metrics_page`."""

import inspect
from pathlib import Path
from types import ModuleType

from conch.domain.metrics.catalog import areas, metrics_of
from conch.domain.metrics.metric import MetricDefinition

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "metrics.md"

_BEGINNING = """\
# Metrics

`GET /metrics` on `--metrics-port` (8002) returns these metrics. [Server metrics](../observability/metrics.md) describes
formats, options and custom metrics. `make docs` writes this page from the definitions in the code.

| Label | On | Meaning |
|---|---|---|
| `model` | metrics of models | name of the model |
| `version` | metrics of models | version of the model |
| `namespace` | metrics of models, with `--model-namespacing` | repository of the model |
| `_<key>` | metrics of models | one of the model's `metric_tags`; invalid characters become `_` |
| `instance` | processes | name of the instance, or `engine` |
| `protocol` | connections and bytes | `http`, `grpc`, `openai` or `metrics` |
| `reason` | failures | `REJECTED` by the queue, `CANCELED` by the client, `BACKEND` if the model failed, else `OTHER` |
| `le` | histograms | upper bound of the bucket |
"""


def reference() -> str:
    """Return the page as Markdown."""
    return "\n".join([_BEGINNING, *(part for area in areas() for part in _section(area))])


def _section(area: ModuleType) -> list[str]:
    first, _, rest = (inspect.getdoc(area) or "").partition("\n\n")
    heading, _, summary = first.partition(":")
    text = f"{summary.strip()[:1].upper()}{summary.strip()[1:]}\n\n{rest}".strip()
    rows = [_row(metric) for metric in metrics_of(area)]
    return [f"## {heading.strip()}\n", f"{text}\n", "| Name | Type | Labels | Meaning |\n|---|---|---|---|", *rows, ""]


def _row(metric: MetricDefinition) -> str:
    labels = ", ".join([*(f"`{name}`" for name in metric.labels), *(f"(`{name}`)" for name in metric.optional_labels)])
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |"


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
