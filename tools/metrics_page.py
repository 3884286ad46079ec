"""Write the reference page of all metrics, `docs/reference/metrics.md`: `python -m tools.metrics_page`."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from conch.domain.metrics.catalog import LEGACY_LABELS, areas, dcgm_fields
from conch.domain.metrics.metric import MetricDefinition

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "metrics.md"
_MIN_GROUP = 4  # metrics with the same first label that have a separate table

_BEGINNING = """\
# Metrics

`GET /metrics` on `--metrics-port` (8002) returns these metrics. [Server metrics](../observability/metrics.md) describes
formats, options and custom metrics. Labels in parentheses are optional.

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


# Heading and text of each area, in the order of the page.
_AREAS = {
    "triton": """\
Triton: names, kinds and labels of Triton, so that its dashboards and alerts work.

The series of a model exist, with the value 0, from its load until it is unloaded. Durations are counters of whole
microseconds. For an average, divide the rate of a duration by the rate of `nv_inference_request_success`. The
statistics endpoints of the protocol report the same counters.""",
    "server": """\
Server: what Triton and vLLM have no metrics for.

Durations are in seconds, sizes in bytes. A timer that fires every 25 ms measures how long the event loop is blocked;
that lag is at most the CPU time that the process used meanwhile, so that a busy machine does not count. Processes of
models and engines are sampled once per `--metrics-interval-ms`.""",
    "vllm": """\
Language models: vLLM's names and buckets with any engine, for vLLM's dashboards.

Triton's metrics apply to these models too; their queue duration is the time to the first token. Some times start when
the engine schedules a request first: those of queue, prefill and inference. They are measured for finished requests if
the engine reports that moment: `openvino_genai` and `scripted` always do, `vllm` does unless `disable_log_stats` is set
in `model.json`. The label `engine` is always `0`.

Other metrics of vLLM are not implemented: iterations, preemptions and waiting requests by reason, and those of
transfers of the KV cache, speculative decoding, sleep and tool calls.""",
    "accelerators": """\
Accelerators: the normal form, with base units and the same names for every vendor.""",
    "accelerators_native": """\
Accelerators under their vendors' names: what the vendors' own exporters expose, in their units.

Dashboards for those exporters work with them. DCGM's names for NVIDIA are below.""",
    "alerts": """\
Alerts: metrics of `conch alerts receive`.""",
    "custom": """\
Custom metrics: the state of the metrics that `--metrics-config=custom_metrics=FILE` declares.""",
    "dcgm": """\
NVIDIA GPUs, names of DCGM: metrics of `conch gpu-exporter`, named as before DCGM 4.7 and as since.

DCGM 4.7 renamed most fields: the second name of a row is the new one, which has base units; a unit in the meaning is
that of the first. `--dcgm-names` chooses. Numbers are DCGM's; fields marked `-f` need a counter file. Old names also
have the optional labels `Hostname` and `DCGM_FI_DRIVER_VERSION`, new ones `hostname` and
`DCGM_FI_SYSTEM_DRIVER_VERSION`.
[GPU metrics](../observability/gpu.md) describes what they are read from.""",
    "gpu": """\
NVIDIA GPUs, names of Triton: metrics of the GPUs of a server, and the state of accelerators.""",
    "limits": """\
Limits: rates of requests and tokens, and their limits.""",
    "tunnel": """\
Tunnels: the state of `conch tunnel`, on its own port (9405).""",
}


def reference() -> str:
    """Return the page as Markdown."""
    return "\n".join([_BEGINNING, *(part for area in _AREAS for part in _section(area))])


def _section(area: str) -> list[str]:
    first, _, rest = _AREAS[area].partition("\n\n")
    heading, _, summary = first.partition(":")
    text = f"{summary.strip()[:1].upper()}{summary.strip()[1:]}\n\n{rest}".strip()
    tables = [_dcgm_table()] if area == "dcgm" else _tables(areas()[area])
    return [f"## {heading.strip()}\n", *([f"{text}\n"] if text else []), *(part for table in tables for part in table)]


def _tables(metrics: Sequence[MetricDefinition]) -> list[list[str]]:
    groups: dict[str, list[MetricDefinition]] = {}
    for metric in metrics:
        groups.setdefault(metric.labels[0] if metric.labels else "", []).append(metric)
    few = [metric for group in groups.values() if len(group) < _MIN_GROUP for metric in group]
    tables = [*(group for group in groups.values() if len(group) >= _MIN_GROUP), few]
    return [part for table in tables if table for part in _split(table)]


def _split(metrics: list[MetricDefinition]) -> list[list[str]]:
    """Return the metrics as a table, or as two if several have the same labels that others lack."""
    shared = {name for name in _all_labels(metrics[0]) if all(name in _all_labels(metric) for metric in metrics)}
    alike = Counter(tuple(name for name in _all_labels(metric) if name not in shared) for metric in metrics)
    labels, number = max(alike.items(), key=lambda item: item[1] if item[0] else 0)
    if not labels or not _MIN_GROUP <= number < len(metrics):
        return [_table(metrics)]
    same = [metric for metric in metrics if set(labels) <= set(_all_labels(metric))]
    return [
        _table(same),
        *([_table(others)] if (others := [metric for metric in metrics if metric not in same]) else []),
    ]


def _all_labels(metric: MetricDefinition) -> tuple[str, ...]:
    return (*metric.labels, *metric.optional_labels)


def _table(metrics: list[MetricDefinition]) -> list[str]:
    """Return the metrics as a table; labels that all have are above it."""
    every = [name for name in metrics[0].labels if all(name in metric.labels for metric in metrics)]
    perhaps = [name for name in metrics[0].optional_labels if all(name in metric.optional_labels for metric in metrics)]
    rest = [
        _names(
            [name for name in metric.labels if name not in every],
            [name for name in metric.optional_labels if name not in perhaps],
        )
        for metric in metrics
    ]
    return _rows(
        _names(every, perhaps),
        [
            (f"`{metric.name}`", metric.kind, f"{metric.help} Labels: {labels}." if labels else metric.help)
            for metric, labels in zip(metrics, rest, strict=True)
        ],
    )


def _dcgm_table() -> list[str]:
    """Return the fields of DCGM, each with the name before 4.7 and the one since."""
    fields = dcgm_fields()
    [plain, *_] = (field.legacy for field in fields)
    every = list(plain.labels)
    perhaps = [name for name in plain.optional_labels if name not in LEGACY_LABELS]
    rows = []
    for field in fields:
        names = ", ".join(dict.fromkeys((f"`{field.legacy.name}`", f"`{field.current.name}`")))
        extra = _names([name for name in field.legacy.labels if name not in every], [])
        numbers = ", ".join(str(number) for number in dict.fromkeys((field.legacy_id, field.current_id)) if number)
        meaning = " ".join(
            [
                field.legacy.help,
                *([f"Labels: {extra}."] if extra else []),
                *([f"{numbers}."] if numbers else []),
                *([] if field.legacy_default else ["Old name: `-f`."] if field.current_default else ["`-f`."]),
            ]
        )
        rows.append((names, field.legacy.kind, meaning))
    return _rows(_names(every, perhaps), rows)


def _rows(shared: str, rows: Iterable[tuple[str, str, str]]) -> list[str]:
    head = [f"Labels of all: {shared}.\n"] if shared else []
    return [*head, "| Name | Type | Meaning |\n|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows), ""]


def _names(labels: Iterable[str], optional: Iterable[str]) -> str:
    return ", ".join([*(f"`{name}`" for name in labels), *(f"(`{name}`)" for name in optional)])


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
