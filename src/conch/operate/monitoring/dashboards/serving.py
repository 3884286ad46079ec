"""Dashboards of a server: overview, stages, queues, resources, autoscaling."""

from dataclasses import replace

from conch.domain.metrics import server, triton
from conch.domain.metrics.metric import MetricDefinition, Unit
from conch.operate.monitoring.dashboards.measure import (
    Measure,
    average,
    buckets,
    gauge,
    increase,
    mean,
    quantile,
    rate,
    ratio,
    subjects,
    total,
)
from conch.operate.monitoring.dashboards.panel import DashboardPanel, GrafanaDashboard, PanelRow, line
from conch.operate.monitoring.units import conversion

MODEL_VARIABLES = (
    ("model", "Model", f'label_values({triton.REQUEST_SUCCESS.name}{{job=~"$job", instance=~"$instance"}}, model)'),
    (
        "version",
        "Version",
        f'label_values({triton.REQUEST_SUCCESS.name}{{job=~"$job", instance=~"$instance", model=~"$model"}}, version)',
    ),
)
_NOT_CANCELED = 'reason!="CANCELED"'
_REQUESTS: Unit = "requests_per_second"


def _success_ratio(*by: str) -> Measure:
    """Return the share of requests that succeeded, of those that their client did not cancel."""
    succeeded = rate(triton.REQUEST_SUCCESS, *by, unit=_REQUESTS)
    failed = rate(triton.REQUEST_FAILURE, *by, where=_NOT_CANCELED)
    return ratio(succeeded, total(succeeded, failed))


def _burn_rate(window: str) -> Measure:
    """Return how many times faster than allowed the error budget is used up."""
    succeeded = rate(triton.REQUEST_SUCCESS, "model", window=window)
    failed = rate(triton.REQUEST_FAILURE, "model", where=_NOT_CANCELED, window=window)
    failures = ratio(failed, total(succeeded, failed))
    return replace(failures, expr=f"{failures.expr} / (1 - $objective)", unit="")


def _stage_time(title: str, metric: MetricDefinition, text: str) -> DashboardPanel:
    return DashboardPanel(title, text, (line(average(metric, triton.REQUEST_SUCCESS)),))


_QUEUE_COMPUTE = Measure(
    f"{rate(triton.QUEUE_DURATION).expr} / clamp_min({rate(triton.COMPUTE_INFER_DURATION).expr}, 1)",
    "",
    subjects(triton.QUEUE_DURATION),
)
_UTILIZATION = ratio(rate(server.INSTANCE_BUSY), gauge(server.INSTANCES))
_QUEUE_COMPUTE_PANEL = DashboardPanel(
    "Queue to compute ratio",
    "Time that requests wait per time that they are executed, as in triton:queue_compute:ratio. "
    "Above 1, more instances or replicas help.",
    (line(_QUEUE_COMPUTE),),
    steps=((0, "green"), (0.5, "orange"), (1, "red")),
    width=12,
)
_UTILIZATION_PANEL = DashboardPanel(
    "Instance utilization",
    "Share of time in which the instances of a model execute batches.",
    (line(_UTILIZATION),),
    # An execution counts when it ends, also the part before the window.
    range=(0, 1.5),
    width=12,
)
_REPLICAS_PANEL = DashboardPanel(
    "Ready replicas", "Servers on which the model is ready.", (line(gauge(server.MODEL_READY)),), width=12
)

OVERVIEW = GrafanaDashboard(
    "conch-overview",
    "Conch / Overview and SLO",
    "Success, latency and traffic of all models; the P99 by hour.",
    (
        PanelRow(
            "Service level",
            (
                DashboardPanel(
                    "Success",
                    "Share of requests that succeeded, without those that clients cancelled.",
                    (line(_success_ratio("")),),
                    "number",
                    steps=((0, "red"), (0.99, "orange"), (0.999, "green")),
                    width=6,
                    height=5,
                ),
                DashboardPanel(
                    "P99",
                    "Latency that 99 % of the successful requests do not exceed.",
                    (line(quantile(0.99, server.REQUEST_DURATION, "")),),
                    "number",
                    width=6,
                    height=5,
                ),
                DashboardPanel(
                    "Requests",
                    "Successful requests per second.",
                    (line(rate(triton.REQUEST_SUCCESS, "", unit=_REQUESTS)),),
                    "number",
                    width=6,
                    height=5,
                ),
                DashboardPanel(
                    "Ready models",
                    "Model versions that accept requests, over all servers.",
                    (line(gauge(server.MODEL_READY, "")),),
                    "number",
                    width=6,
                    height=5,
                ),
                DashboardPanel(
                    "P99 by hour",
                    "The P99 of each model and hour.",
                    (line(quantile(0.99, server.REQUEST_DURATION, "model", window="1h")),),
                    "heatmap",
                    width=12,
                    interval="1h",
                ),
                DashboardPanel(
                    "Latency by hour",
                    "Successful requests of each hour by their latency.",
                    (line(buckets(server.REQUEST_DURATION, "1h")),),
                    "heatmap",
                    width=12,
                    interval="1h",
                    bucket_unit=server.REQUEST_DURATION.unit,
                ),
                DashboardPanel(
                    "Success by model",
                    "Share of requests that succeeded, without those that clients cancelled.",
                    (line(_success_ratio("model", "version")),),
                    width=12,
                ),
                DashboardPanel(
                    "Error budget burn rate",
                    "How many times faster than allowed by the objective the error budget is used up. At 1 it lasts "
                    "exactly for the period of the objective.",
                    (line(_burn_rate("1h"), "1 h"), line(_burn_rate("5m"), "5 min")),
                    steps=((0, "green"), (1, "orange"), (14.4, "red")),
                    width=12,
                ),
                DashboardPanel(
                    "Latency",
                    "Quantiles of the latency of successful requests.",
                    tuple(
                        line(quantile(level, server.REQUEST_DURATION, ""), name)
                        for level, name in ((0.5, "P50"), (0.95, "P95"), (0.99, "P99"))
                    ),
                    width=12,
                ),
                DashboardPanel(
                    "Requests since the start",
                    "Successful requests since the start of each server.",
                    (line(gauge(triton.REQUEST_SUCCESS)),),
                    width=12,
                ),
            ),
        ),
        PanelRow(
            "Traffic",
            (
                DashboardPanel(
                    "Requests by model",
                    "Successful requests per second.",
                    (line(rate(triton.REQUEST_SUCCESS, unit=_REQUESTS)),),
                ),
                DashboardPanel(
                    "Failures by reason",
                    "Failed requests per second.",
                    (line(rate(triton.REQUEST_FAILURE, "reason", unit=_REQUESTS)),),
                ),
                DashboardPanel(
                    "Rejections by reason",
                    "Requests per second that were answered with an error without being executed.",
                    (line(rate(server.REJECTED_REQUESTS, "reason", unit=_REQUESTS)),),
                ),
                DashboardPanel("Batch size", "Average inferences per execution.", (line(mean(server.BATCH_SIZE)),)),
                DashboardPanel(
                    "Connections", "Open connections.", (line(gauge(server.CONNECTIONS, "protocol")),), stacked=True
                ),
                DashboardPanel(
                    "Network",
                    "Bytes per second from and to clients.",
                    (
                        line(rate(server.RECEIVED_BYTES, "protocol"), "received"),
                        line(rate(server.SENT_BYTES, "protocol"), "sent"),
                    ),
                ),
            ),
        ),
    ),
    MODEL_VARIABLES,
    (("objective", "Objective (share of requests)", "0.999"),),
    "now-24h",
)

STAGES = GrafanaDashboard(
    "conch-stages",
    "Conch / Stages",
    "Success and latency of each model, so that the slow stage of an ensemble stands out.",
    (
        PanelRow(
            "Health of each stage",
            (
                DashboardPanel(
                    "Success",
                    "Share of requests that succeeded, without those that clients cancelled.",
                    (line(_success_ratio("model", "version")),),
                    steps=((0, "red"), (0.99, "orange"), (0.999, "green")),
                ),
                DashboardPanel(
                    "Average latency",
                    "Average time from the receipt of a request to its response.",
                    (line(average(triton.REQUEST_DURATION, triton.REQUEST_SUCCESS)),),
                ),
                DashboardPanel(
                    "P99 latency",
                    "Latency that 99 % of the successful requests do not exceed.",
                    (line(quantile(0.99, server.REQUEST_DURATION)),),
                ),
                DashboardPanel(
                    "Failures by reason",
                    "Failed requests per second.",
                    (line(rate(triton.REQUEST_FAILURE, "model", "reason", unit=_REQUESTS)),),
                    width=12,
                ),
                DashboardPanel(
                    "Inferences",
                    "Inferences per second: a request with a batch of n counts n times.",
                    (line(rate(triton.INFERENCE_COUNT)),),
                    width=12,
                ),
            ),
        ),
        PanelRow(
            "Where the time goes",
            (
                _stage_time("Queue", triton.QUEUE_DURATION, "Average time that a request waits for an instance."),
                _stage_time(
                    "Compute", triton.COMPUTE_INFER_DURATION, "Average time in which the model executes a request."
                ),
                DashboardPanel(
                    "Time of all requests by phase",
                    "Seconds of requests per second: how many requests are in each phase on average.",
                    tuple(
                        line(rate(metric, "").times(conversion(metric.unit, "seconds"), ""), name)
                        for metric, name in (
                            (triton.QUEUE_DURATION, "queue"),
                            (triton.COMPUTE_INPUT_DURATION, "input"),
                            (triton.COMPUTE_INFER_DURATION, "compute"),
                            (triton.COMPUTE_OUTPUT_DURATION, "output"),
                        )
                    ),
                    stacked=True,
                ),
                _stage_time("Inputs", triton.COMPUTE_INPUT_DURATION, "Average time to prepare a request's inputs."),
                _stage_time("Outputs", triton.COMPUTE_OUTPUT_DURATION, "Average time to prepare a request's outputs."),
                DashboardPanel(
                    "P99 in the queue",
                    "Time that 99 % of the successful requests do not exceed waiting for an instance.",
                    (line(quantile(0.99, server.QUEUE_DURATION)),),
                ),
            ),
        ),
    ),
    MODEL_VARIABLES,
)

QUEUES = GrafanaDashboard(
    "conch-queues",
    "Conch / Queues and replicas",
    "Whether requests wait, and for what: instances or replicas.",
    (
        PanelRow(
            "Queue and compute",
            (
                _QUEUE_COMPUTE_PANEL,
                _UTILIZATION_PANEL,
                DashboardPanel(
                    "Requests in the queue", "Requests that wait for an instance.", (line(gauge(server.QUEUE_DEPTH)),)
                ),
                DashboardPanel(
                    "Oldest request in the queue",
                    "Age of the request that has waited longest.",
                    (line(gauge(server.QUEUE_OLDEST, operator="max")),),
                ),
                DashboardPanel(
                    "Pending requests",
                    "Requests that are not executing yet, including those sent ahead to a busy instance.",
                    (line(gauge(triton.PENDING_REQUESTS)),),
                ),
                DashboardPanel("Executions", "Batches per second.", (line(rate(triton.EXEC_COUNT)),)),
                DashboardPanel("Queue time", "Average time in the queue.", (line(mean(server.QUEUE_DURATION)),)),
                DashboardPanel("Batch size", "Average inferences per execution.", (line(mean(server.BATCH_SIZE)),)),
            ),
        ),
        PanelRow(
            "Replicas",
            (
                _REPLICAS_PANEL,
                DashboardPanel("Instances", "Instances over all servers.", (line(gauge(server.INSTANCES)),), width=12),
            ),
        ),
    ),
    MODEL_VARIABLES,
)

AUTOSCALING = GrafanaDashboard(
    "conch-autoscaling",
    "Conch / Autoscaling",
    "The signals by which replicas are added and removed, and how long a new one takes to be ready.",
    (
        PanelRow(
            "Signals",
            (
                _QUEUE_COMPUTE_PANEL,
                _UTILIZATION_PANEL,
                DashboardPanel(
                    "Queue per replica",
                    "Requests that wait for an instance, per server on which the model is ready.",
                    (line(ratio(gauge(server.QUEUE_DEPTH), gauge(server.MODEL_READY), "")),),
                ),
                DashboardPanel(
                    "Requests per replica",
                    "Successful requests per second, per server on which the model is ready.",
                    (line(ratio(rate(triton.REQUEST_SUCCESS), gauge(server.MODEL_READY), _REQUESTS)),),
                ),
                DashboardPanel(
                    "Requests, now and predicted",
                    "Successful requests per second, and in five minutes if the trend of ten minutes continues.",
                    (
                        line(rate(triton.REQUEST_SUCCESS, "model", unit=_REQUESTS), "now"),
                        line(
                            Measure(
                                f"clamp_min(predict_linear(({rate(triton.REQUEST_SUCCESS, 'model').expr})"
                                "[10m:15s], 300), 0)",
                                _REQUESTS,
                                ("model",),
                            ),
                            "in 5 min",
                        ),
                    ),
                ),
            ),
        ),
        PanelRow(
            "Replicas",
            (
                _REPLICAS_PANEL,
                DashboardPanel(
                    "Time to load",
                    "Duration of the last load of each model: the part of a cold start that the server knows.",
                    (line(gauge(triton.LOAD_DURATION, operator="max")),),
                    width=12,
                ),
            ),
        ),
    ),
    MODEL_VARIABLES,
)

_PROCESS = ("model", "version", "exported_instance")
RESOURCES = GrafanaDashboard(
    "conch-resources",
    "Conch / Resources",
    "CPU, memory and connections of the server and of the processes of models, and of the machine.",
    (
        PanelRow(
            "Processes",
            (
                DashboardPanel(
                    "CPU of the server",
                    "Cores that the server's process uses.",
                    (line(rate(server.PROCESS_CPU_SECONDS, "instance")),),
                ),
                DashboardPanel(
                    "Memory of the server",
                    "Resident memory of the server's process.",
                    (line(gauge(server.PROCESS_RESIDENT_MEMORY, "instance")),),
                ),
                DashboardPanel(
                    "Open files",
                    "Open file descriptors of the server's process, as a share of the maximum.",
                    (
                        line(
                            ratio(gauge(server.PROCESS_OPEN_FDS, "instance"), gauge(server.PROCESS_MAX_FDS, "instance"))
                        ),
                    ),
                ),
                DashboardPanel(
                    "CPU of model processes",
                    "Cores that the process of each instance or engine uses.",
                    (line(rate(server.PROCESS_CPU, *_PROCESS)),),
                ),
                DashboardPanel(
                    "Memory of model processes",
                    "Resident memory of the process of each instance or engine. One that only grows leaks.",
                    (line(gauge(server.PROCESS_MEMORY, *_PROCESS)),),
                ),
                DashboardPanel(
                    "Restarts",
                    "Attempts in an hour to replace a process that had exited.",
                    (line(increase(server.PROCESS_RESTARTS, window="1h")),),
                    steps=((0, "green"), (1, "red")),
                ),
            ),
        ),
        PanelRow(
            "Event loop and request memory",
            (
                DashboardPanel(
                    "Event loop lag",
                    "Time that 99 % of the measurements of the blocked event loop do not exceed.",
                    (line(quantile(0.99, server.LOOP_LAG, "instance")),),
                ),
                DashboardPanel(
                    "Stalls in an hour",
                    "How often the event loop was blocked for more than 100 ms.",
                    (line(increase(server.LOOP_STALLS, "instance", window="1h")),),
                ),
                DashboardPanel(
                    "Memory of request bodies",
                    "Share of the limit in use.",
                    (
                        line(
                            ratio(
                                gauge(server.REQUEST_MEMORY_USED, "instance"),
                                gauge(server.REQUEST_MEMORY_LIMIT, "instance"),
                            )
                        ),
                    ),
                ),
            ),
        ),
        PanelRow(
            "Machine",
            (
                DashboardPanel(
                    "CPU", "Share of CPU time in use on all cores.", (line(gauge(triton.CPU_UTILIZATION, "instance")),)
                ),
                DashboardPanel(
                    "Memory",
                    "Share of the machine's memory in use.",
                    (
                        line(
                            ratio(gauge(triton.CPU_MEMORY_USED, "instance"), gauge(triton.CPU_MEMORY_TOTAL, "instance"))
                        ),
                    ),
                ),
                DashboardPanel(
                    "Response cache",
                    "Share of look-ups that hit, by model, and of the cache's bytes in use.",
                    (
                        line(
                            ratio(
                                rate(triton.MODEL_CACHE_HITS),
                                total(rate(triton.MODEL_CACHE_HITS), rate(triton.MODEL_CACHE_MISSES)),
                            ),
                            "hits",
                        ),
                        line(gauge(triton.CACHE_UTILIZATION, "instance"), "in use"),
                    ),
                ),
            ),
        ),
    ),
    MODEL_VARIABLES,
)
