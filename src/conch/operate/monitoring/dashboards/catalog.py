"""All dashboards, and those of servers: overview, stages, queues, resources, autoscaling, limits, language models."""

from dataclasses import replace

from conch.domain.metrics import limits, server, triton, vllm
from conch.domain.metrics.metric import MetricDefinition, Unit
from conch.operate.monitoring.dashboards.accelerators import DcgmNames, gpu_dashboard
from conch.operate.monitoring.dashboards.panel import (
    DashboardPanel,
    GrafanaDashboard,
    Measure,
    PanelRow,
    average,
    buckets,
    gauge,
    increase,
    line,
    mean,
    quantile,
    rate,
    ratio,
    selector,
    subjects,
    total,
)
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


_SUBJECT = ("model", "version", "tenant")


def _rates_and_limits(
    unit: str, rate_of: MetricDefinition, peak: MetricDefinition, limit: MetricDefinition
) -> tuple[DashboardPanel, DashboardPanel]:
    """Return a panel of rates beside their limits, and one of the share of the limits in use, of each server."""
    by = ("instance", *_SUBJECT)
    measured, allowed = gauge(rate_of, *by, operator="max"), gauge(limit, *by, operator="min")
    peaks = gauge(peak, *by, operator="max")
    compared = DashboardPanel(
        f"{unit} per second and limits",
        f"{unit} of the last second, and the lowest limit of each model, version and tenant, of each server.",
        (line(measured, "rate"), line(peaks, "peak"), line(gauge(limit, *by, "enforced", operator="min"), "limit")),
        width=12,
    )
    used = DashboardPanel(
        f"Share of limits used, {unit.lower()}",
        "Rate and peak since the last scrape, divided by the lowest limit. Above 1 the limit is exceeded.",
        (line(ratio(measured, allowed), "rate"), line(ratio(peaks, allowed), "peak")),
        range=(0, None),
        steps=((0, "green"), (0.8, "orange"), (1, "red")),
        width=12,
    )
    return compared, used


LIMITS = GrafanaDashboard(
    "conch-limits",
    "Conch / Limits",
    "Requests and tokens per second beside their limits, what exceeds them, and changes of limits.",
    (
        PanelRow(
            "Rates",
            (
                *_rates_and_limits(
                    "Requests", limits.REQUEST_RATE, limits.REQUEST_RATE_PEAK, limits.REQUEST_RATE_LIMIT
                ),
                *_rates_and_limits("Tokens", limits.TOKEN_RATE, limits.TOKEN_RATE_PEAK, limits.TOKEN_RATE_LIMIT),
                DashboardPanel(
                    "Requests over a limit",
                    "Requests per second over a limit: refused if it is enforced, else served.",
                    (line(rate(limits.LIMIT_EXCEEDED, *_SUBJECT, "enforced", unit="requests_per_second")),),
                    width=24,
                ),
            ),
        ),
        PanelRow(
            "Sources and changes",
            (
                DashboardPanel(
                    "Sources",
                    "1 if the source of limits is readable and valid. If it is 0, its last limits stay in force.",
                    (line(gauge(limits.LIMIT_SOURCE_UP, "instance", "source", operator="min")),),
                    range=(0, 1),
                    steps=((0, "red"), (1, "green")),
                ),
                DashboardPanel(
                    "Changes in an hour",
                    "Changes of limits by their source.",
                    (line(increase(limits.LIMIT_CHANGES, "source", window="1h")),),
                ),
                DashboardPanel(
                    "Time since the last change",
                    "Time since limits changed last, on the server where that was longest ago.",
                    (
                        line(
                            Measure(
                                f"time() - min by (instance) ({selector(limits.LIMIT_LAST_CHANGE)})",
                                "seconds",
                                ("instance",),
                            )
                        ),
                    ),
                ),
                DashboardPanel(
                    "Tenants",
                    "Tenants that are measured separately, besides those that limits name.",
                    (line(gauge(limits.LIMIT_TENANTS, "instance")),),
                ),
                DashboardPanel(
                    "Audit log",
                    "Records in the audit log, and those that could not be written.",
                    (
                        line(gauge(limits.LIMIT_AUDIT_RECORDS, "instance"), "records"),
                        line(increase(limits.LIMIT_AUDIT_FAILURES, "instance", window="1h"), "failures in an hour"),
                    ),
                ),
                DashboardPanel(
                    "Requests of stages",
                    "Requests of a stage that one request of an ensemble causes at most.",
                    (line(gauge(limits.STAGE_REQUESTS, "model", "stage", operator="max")),),
                ),
            ),
        ),
    ),
    (
        ("model", "Model", f'label_values({limits.REQUEST_RATE.name}{{job=~"$job", instance=~"$instance"}}, model)'),
        (
            "version",
            "Version",
            f'label_values({limits.REQUEST_RATE.name}{{job=~"$job", instance=~"$instance", model=~"$model"}}, version)',
        ),
    ),
)


_LEVELS = ((0.5, "P50"), (0.95, "P95"), (0.99, "P99"))
_LANGUAGE_MODEL = "model_name"


def _quantiles(title: str, metric: MetricDefinition, text: str) -> DashboardPanel:
    queries = (*(line(quantile(level, metric, _LANGUAGE_MODEL), name) for level, name in _LEVELS),)
    return DashboardPanel(title, text, (*queries, line(mean(metric, _LANGUAGE_MODEL), "average")))


def _lengths(title: str, metric: MetricDefinition, text: str) -> DashboardPanel:
    return DashboardPanel(title, text, (line(buckets(metric)),), "heatmap", bucket_unit=metric.unit, interval="1m")


LANGUAGE_MODELS = GrafanaDashboard(
    "conch-llm",
    "Conch / Language models",
    "Latency, tokens and KV cache of language models; also for servers of vLLM.",
    (
        PanelRow(
            "Latency",
            (
                _quantiles(
                    "Time to first token", vllm.TIME_TO_FIRST_TOKEN, "From the receipt of a request to its first token."
                ),
                _quantiles(
                    "Inter-token latency", vllm.INTER_TOKEN_LATENCY, "Between two steps with tokens of a request."
                ),
                _quantiles("Request latency", vllm.REQUEST_LATENCY, "From the receipt of a request to its end."),
                _quantiles(
                    "Time in the queue", vllm.QUEUE_TIME, "From the receipt of a request to the engine's first step."
                ),
                _quantiles(
                    "Prefill", vllm.PREFILL_TIME, "From the engine's first step for a request to its first token."
                ),
                _quantiles("Decode", vllm.DECODE_TIME, "From a request's first token to its last."),
            ),
        ),
        PanelRow(
            "Load",
            (
                DashboardPanel(
                    "Requests in the engine",
                    "Requests that run and that wait.",
                    (
                        line(gauge(vllm.REQUESTS_RUNNING, _LANGUAGE_MODEL), "running"),
                        line(gauge(vllm.REQUESTS_WAITING, _LANGUAGE_MODEL), "waiting"),
                    ),
                ),
                DashboardPanel(
                    "Tokens",
                    "Tokens per second of prompts and answers.",
                    (
                        line(rate(vllm.PROMPT_TOKENS, _LANGUAGE_MODEL), "prompt"),
                        line(rate(vllm.GENERATION_TOKENS, _LANGUAGE_MODEL), "generated"),
                    ),
                ),
                DashboardPanel(
                    "Finished by reason",
                    "Finished sequences per second.",
                    (line(rate(vllm.REQUEST_SUCCESS, _LANGUAGE_MODEL, "finished_reason", unit="requests_per_second")),),
                ),
            ),
        ),
        PanelRow(
            "KV cache",
            (
                DashboardPanel(
                    "KV cache in use",
                    "Share of the KV cache in use. Near 1, requests wait or are preempted.",
                    (line(gauge(vllm.KV_CACHE_USAGE, _LANGUAGE_MODEL, operator="max")),),
                    steps=((0, "green"), (0.85, "orange"), (0.95, "red")),
                ),
                DashboardPanel(
                    "Prefix cache",
                    "Share of the tokens of prompts that were found in the prefix cache. Only vLLM reports it.",
                    (
                        line(
                            ratio(
                                rate(vllm.PREFIX_CACHE_HITS, _LANGUAGE_MODEL),
                                rate(vllm.PREFIX_CACHE_QUERIES, _LANGUAGE_MODEL),
                            )
                        ),
                    ),
                ),
                DashboardPanel(
                    "Preemptions",
                    "Requests per second that lost their place in the KV cache.",
                    (line(rate(vllm.PREEMPTIONS, _LANGUAGE_MODEL)),),
                ),
            ),
        ),
        PanelRow(
            "Lengths",
            (
                _lengths("Prompts", vllm.PROMPT_LENGTH, "Requests by the tokens of their prompt."),
                _lengths("Answers", vllm.GENERATION_LENGTH, "Requests by the generated tokens."),
                DashboardPanel(
                    "Time per output token",
                    "Average time from the first token to the last, per token.",
                    (line(mean(vllm.TIME_PER_OUTPUT_TOKEN, _LANGUAGE_MODEL)),),
                ),
            ),
        ),
    ),
    (
        ("model", "Model", f'label_values({vllm.REQUESTS_RUNNING.name}{{job=~"$job"}}, model_name)'),
        ("version", "Version", f'label_values({vllm.REQUESTS_RUNNING.name}{{job=~"$job"}}, version)'),
    ),
)


def all_dashboards(names: DcgmNames = "legacy") -> tuple[GrafanaDashboard, ...]:
    """Return the dashboards, with DCGM's names before or since 4.7."""
    return (OVERVIEW, STAGES, QUEUES, RESOURCES, gpu_dashboard(names), LANGUAGE_MODELS, LIMITS, AUTOSCALING)
