"""The dashboards of servers: overview, stages, queues, resources, autoscaling, limits, language models; and all."""

from dataclasses import replace

from conch.domain.metrics import limits, server, triton, vllm
from conch.domain.metrics.metric import MetricDefinition, Unit
from conch.operate.monitoring.dashboards.accelerators import DcgmNames, gpu_dashboard
from conch.operate.monitoring.dashboards.panel import (
    DashboardPanel,
    GrafanaDashboard,
    Measure,
    Steps,
    Variables,
    average,
    buckets,
    gauge,
    increase,
    mean,
    panel,
    quantile,
    rate,
    ratio,
    row,
    selector,
    subjects,
    total,
)
from conch.operate.monitoring.units import conversion

_LEVELS = ((0.5, "P50"), (0.95, "P95"), (0.99, "P99"))
_GOOD_SHARE: Steps = ((0, "red"), (0.99, "orange"), (0.999, "green"))
_NOT_CANCELED = 'reason!="CANCELED"'
_REQUESTS: Unit = "requests_per_second"


def _variables(metric: MetricDefinition) -> Variables:
    """Return the variables that choose among the models and versions of a metric."""
    series = f'{metric.name}{{job=~"$job", instance=~"$instance"'
    return (
        ("model", "Model", f"label_values({series}}}, model)"),
        ("version", "Version", f'label_values({series}, model=~"$model"}}, version)'),
    )


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


def _number(title: str, text: str, query: Measure, steps: Steps = ()) -> DashboardPanel:
    return panel(title, text, query, kind="number", steps=steps, width=6, height=5)


def _stage_time(title: str, metric: MetricDefinition, text: str) -> DashboardPanel:
    return panel(title, text, average(metric, triton.REQUEST_SUCCESS))


_MODEL_VARIABLES = _variables(triton.REQUEST_SUCCESS)
_QUEUE_COMPUTE = Measure(
    f"{rate(triton.QUEUE_DURATION).expr} / clamp_min({rate(triton.COMPUTE_INFER_DURATION).expr}, 1)",
    "",
    subjects(triton.QUEUE_DURATION),
)
_UTILIZATION = ratio(rate(server.INSTANCE_BUSY), gauge(server.INSTANCES))
_QUEUE_COMPUTE_PANEL = panel(
    "Queue to compute ratio",
    "Time that requests wait per time that they are executed, as in triton:queue_compute:ratio. "
    "Above 1, more instances or replicas help.",
    _QUEUE_COMPUTE,
    steps=((0, "green"), (0.5, "orange"), (1, "red")),
    width=12,
)
_UTILIZATION_PANEL = panel(
    "Instance utilization",
    "Share of time in which the instances of a model execute batches.",
    _UTILIZATION,
    # An execution counts when it ends, also the part before the window.
    range=(0, 1.5),
    width=12,
)
_REPLICAS_PANEL = panel("Ready replicas", "Servers on which the model is ready.", gauge(server.MODEL_READY), width=12)

OVERVIEW = GrafanaDashboard(
    "conch-overview",
    "Conch / Overview and SLO",
    "Success, latency and traffic of all models; the P99 by hour.",
    (
        row(
            "Service level",
            _number(
                "Success",
                "Share of requests that succeeded, without those that clients cancelled.",
                _success_ratio(""),
                steps=_GOOD_SHARE,
            ),
            _number(
                "P99",
                "Latency that 99 % of the successful requests do not exceed.",
                quantile(0.99, server.REQUEST_DURATION, ""),
            ),
            _number("Requests", "Successful requests per second.", rate(triton.REQUEST_SUCCESS, "", unit=_REQUESTS)),
            _number(
                "Ready models", "Model versions that accept requests, over all servers.", gauge(server.MODEL_READY, "")
            ),
            panel(
                "P99 by hour",
                "The P99 of each model and hour.",
                quantile(0.99, server.REQUEST_DURATION, "model", window="1h"),
                kind="heatmap",
                width=12,
                interval="1h",
            ),
            panel(
                "Latency by hour",
                "Successful requests of each hour by their latency.",
                buckets(server.REQUEST_DURATION, "1h"),
                kind="heatmap",
                width=12,
                interval="1h",
                bucket_unit=server.REQUEST_DURATION.unit,
            ),
            panel(
                "Success by model",
                "Share of requests that succeeded, without those that clients cancelled.",
                _success_ratio("model", "version"),
                width=12,
            ),
            panel(
                "Error budget burn rate",
                "How many times faster than allowed by the objective the error budget is used up. At 1 it lasts "
                "exactly for the period of the objective.",
                _burn_rate("1h").named("1 h"),
                _burn_rate("5m").named("5 min"),
                steps=((0, "green"), (1, "orange"), (14.4, "red")),
                width=12,
            ),
            panel(
                "Latency",
                "Quantiles of the latency of successful requests.",
                *(quantile(level, server.REQUEST_DURATION, "").named(name) for level, name in _LEVELS),
                width=12,
            ),
            panel(
                "Requests since the start",
                "Successful requests since the start of each server.",
                gauge(triton.REQUEST_SUCCESS),
                width=12,
            ),
        ),
        row(
            "Traffic",
            panel("Requests by model", "Successful requests per second.", rate(triton.REQUEST_SUCCESS, unit=_REQUESTS)),
            panel(
                "Failures by reason",
                "Failed requests per second.",
                rate(triton.REQUEST_FAILURE, "reason", unit=_REQUESTS),
            ),
            panel(
                "Rejections by reason",
                "Requests per second that were answered with an error without being executed.",
                rate(server.REJECTED_REQUESTS, "reason", unit=_REQUESTS),
            ),
            panel("Batch size", "Average inferences per execution.", mean(server.BATCH_SIZE)),
            panel("Connections", "Open connections.", gauge(server.CONNECTIONS, "protocol"), stacked=True),
            panel(
                "Network",
                "Bytes per second from and to clients.",
                rate(server.RECEIVED_BYTES, "protocol").named("received"),
                rate(server.SENT_BYTES, "protocol").named("sent"),
            ),
        ),
    ),
    _MODEL_VARIABLES,
    (("objective", "Objective (share of requests)", "0.999"),),
    "now-24h",
)

STAGES = GrafanaDashboard(
    "conch-stages",
    "Conch / Stages",
    "Success and latency of each model, so that the slow stage of an ensemble stands out.",
    (
        row(
            "Health of each stage",
            panel(
                "Success",
                "Share of requests that succeeded, without those that clients cancelled.",
                _success_ratio("model", "version"),
                steps=_GOOD_SHARE,
            ),
            panel(
                "Average latency",
                "Average time from the receipt of a request to its response.",
                average(triton.REQUEST_DURATION, triton.REQUEST_SUCCESS),
            ),
            panel(
                "P99 latency",
                "Latency that 99 % of the successful requests do not exceed.",
                quantile(0.99, server.REQUEST_DURATION),
            ),
            panel(
                "Failures by reason",
                "Failed requests per second.",
                rate(triton.REQUEST_FAILURE, "model", "reason", unit=_REQUESTS),
                width=12,
            ),
            panel(
                "Inferences",
                "Inferences per second: a request with a batch of n counts n times.",
                rate(triton.INFERENCE_COUNT),
                width=12,
            ),
        ),
        row(
            "Where the time goes",
            _stage_time("Queue", triton.QUEUE_DURATION, "Average time that a request waits for an instance."),
            _stage_time(
                "Compute", triton.COMPUTE_INFER_DURATION, "Average time in which the model executes a request."
            ),
            panel(
                "Time of all requests by phase",
                "Seconds of requests per second: how many requests are in each phase on average.",
                *(
                    rate(metric, "").times(conversion(metric.unit, "seconds"), "").named(name)
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
            panel(
                "P99 in the queue",
                "Time that 99 % of the successful requests do not exceed waiting for an instance.",
                quantile(0.99, server.QUEUE_DURATION),
            ),
        ),
    ),
    _MODEL_VARIABLES,
)

QUEUES = GrafanaDashboard(
    "conch-queues",
    "Conch / Queues and replicas",
    "Whether requests wait, and for what: instances or replicas.",
    (
        row(
            "Queue and compute",
            _QUEUE_COMPUTE_PANEL,
            _UTILIZATION_PANEL,
            panel("Requests in the queue", "Requests that wait for an instance.", gauge(server.QUEUE_DEPTH)),
            panel(
                "Oldest request in the queue",
                "Age of the request that has waited longest.",
                gauge(server.QUEUE_OLDEST, operator="max"),
            ),
            panel(
                "Pending requests",
                "Requests that are not executing yet, including those sent ahead to a busy instance.",
                gauge(triton.PENDING_REQUESTS),
            ),
            panel("Executions", "Batches per second.", rate(triton.EXEC_COUNT)),
            panel("Queue time", "Average time in the queue.", mean(server.QUEUE_DURATION)),
            panel("Batch size", "Average inferences per execution.", mean(server.BATCH_SIZE)),
        ),
        row(
            "Replicas",
            _REPLICAS_PANEL,
            panel("Instances", "Instances over all servers.", gauge(server.INSTANCES), width=12),
        ),
    ),
    _MODEL_VARIABLES,
)

AUTOSCALING = GrafanaDashboard(
    "conch-autoscaling",
    "Conch / Autoscaling",
    "The signals by which replicas are added and removed, and how long a new one takes to be ready.",
    (
        row(
            "Signals",
            _QUEUE_COMPUTE_PANEL,
            _UTILIZATION_PANEL,
            panel(
                "Queue per replica",
                "Requests that wait for an instance, per server on which the model is ready.",
                ratio(gauge(server.QUEUE_DEPTH), gauge(server.MODEL_READY), ""),
            ),
            panel(
                "Requests per replica",
                "Successful requests per second, per server on which the model is ready.",
                ratio(rate(triton.REQUEST_SUCCESS), gauge(server.MODEL_READY), _REQUESTS),
            ),
            panel(
                "Requests, now and predicted",
                "Successful requests per second, and in five minutes if the trend of ten minutes continues.",
                rate(triton.REQUEST_SUCCESS, "model", unit=_REQUESTS).named("now"),
                Measure(
                    f"clamp_min(predict_linear(({rate(triton.REQUEST_SUCCESS, 'model').expr})[10m:15s], 300), 0)",
                    _REQUESTS,
                    ("model",),
                ).named("in 5 min"),
            ),
        ),
        row(
            "Replicas",
            _REPLICAS_PANEL,
            panel(
                "Time to load",
                "Duration of the last load of each model: the part of a cold start that the server knows.",
                gauge(triton.LOAD_DURATION, operator="max"),
                width=12,
            ),
        ),
    ),
    _MODEL_VARIABLES,
)

_PROCESS = ("model", "version", "exported_instance")
RESOURCES = GrafanaDashboard(
    "conch-resources",
    "Conch / Resources",
    "CPU, memory and connections of the server and of the processes of models, and of the machine.",
    (
        row(
            "Processes",
            panel(
                "CPU of the server",
                "Cores that the server's process uses.",
                rate(server.PROCESS_CPU_SECONDS, "instance"),
            ),
            panel(
                "Memory of the server",
                "Resident memory of the server's process.",
                gauge(server.PROCESS_RESIDENT_MEMORY, "instance"),
            ),
            panel(
                "Open files",
                "Open file descriptors of the server's process, as a share of the maximum.",
                ratio(gauge(server.PROCESS_OPEN_FDS, "instance"), gauge(server.PROCESS_MAX_FDS, "instance")),
            ),
            panel(
                "CPU of model processes",
                "Cores that the process of each instance or engine uses.",
                rate(server.PROCESS_CPU, *_PROCESS),
            ),
            panel(
                "Memory of model processes",
                "Resident memory of the process of each instance or engine. One that only grows leaks.",
                gauge(server.PROCESS_MEMORY, *_PROCESS),
            ),
            panel(
                "Restarts",
                "Attempts in an hour to replace a process that had exited.",
                increase(server.PROCESS_RESTARTS, window="1h"),
                steps=((0, "green"), (1, "red")),
            ),
        ),
        row(
            "Event loop and request memory",
            panel(
                "Event loop lag",
                "Time that 99 % of the measurements of the blocked event loop do not exceed.",
                quantile(0.99, server.LOOP_LAG, "instance"),
            ),
            panel(
                "Stalls in an hour",
                "How often the event loop was blocked for more than 100 ms.",
                increase(server.LOOP_STALLS, "instance", window="1h"),
            ),
            panel(
                "Memory of request bodies",
                "Share of the limit in use.",
                ratio(gauge(server.REQUEST_MEMORY_USED, "instance"), gauge(server.REQUEST_MEMORY_LIMIT, "instance")),
            ),
        ),
        row(
            "Machine",
            panel("CPU", "Share of CPU time in use on all cores.", gauge(triton.CPU_UTILIZATION, "instance")),
            panel(
                "Memory",
                "Share of the machine's memory in use.",
                ratio(gauge(triton.CPU_MEMORY_USED, "instance"), gauge(triton.CPU_MEMORY_TOTAL, "instance")),
            ),
            panel(
                "Response cache",
                "Share of look-ups that hit, by model, and of the cache's bytes in use.",
                ratio(
                    rate(triton.MODEL_CACHE_HITS), total(rate(triton.MODEL_CACHE_HITS), rate(triton.MODEL_CACHE_MISSES))
                ).named("hits"),
                gauge(triton.CACHE_UTILIZATION, "instance").named("in use"),
            ),
        ),
    ),
    _MODEL_VARIABLES,
)

_SUBJECT = ("model", "version", "tenant")


def _rates_and_limits(
    unit: str, rate_of: MetricDefinition, peak: MetricDefinition, limit: MetricDefinition
) -> tuple[DashboardPanel, DashboardPanel]:
    """Return a panel of rates beside their limits, and one of the share of the limits in use, of each server."""
    by = ("instance", *_SUBJECT)
    measured, allowed = gauge(rate_of, *by, operator="max"), gauge(limit, *by, operator="min")
    peaks = gauge(peak, *by, operator="max")
    compared = panel(
        f"{unit} per second and limits",
        f"{unit} of the last second, and the lowest limit of each model, version and tenant, of each server.",
        measured.named("rate"),
        peaks.named("peak"),
        gauge(limit, *by, "enforced", operator="min").named("limit"),
        width=12,
    )
    used = panel(
        f"Share of limits used, {unit.lower()}",
        "Rate and peak since the last scrape, divided by the lowest limit. Above 1 the limit is exceeded.",
        ratio(measured, allowed).named("rate"),
        ratio(peaks, allowed).named("peak"),
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
        row(
            "Rates",
            *_rates_and_limits("Requests", limits.REQUEST_RATE, limits.REQUEST_RATE_PEAK, limits.REQUEST_RATE_LIMIT),
            *_rates_and_limits("Tokens", limits.TOKEN_RATE, limits.TOKEN_RATE_PEAK, limits.TOKEN_RATE_LIMIT),
            panel(
                "Requests over a limit",
                "Requests per second over a limit: refused if it is enforced, else served.",
                rate(limits.LIMIT_EXCEEDED, *_SUBJECT, "enforced", unit="requests_per_second"),
                width=24,
            ),
        ),
        row(
            "Sources and changes",
            panel(
                "Sources",
                "1 if the source of limits is readable and valid. If it is 0, its last limits stay in force.",
                gauge(limits.LIMIT_SOURCE_UP, "instance", "source", operator="min"),
                range=(0, 1),
                steps=((0, "red"), (1, "green")),
            ),
            panel(
                "Changes in an hour",
                "Changes of limits by their source.",
                increase(limits.LIMIT_CHANGES, "source", window="1h"),
            ),
            panel(
                "Time since the last change",
                "Time since limits changed last, on the server where that was longest ago.",
                Measure(f"time() - min by (instance) ({selector(limits.LIMIT_LAST_CHANGE)})", "seconds", ("instance",)),
            ),
            panel(
                "Tenants",
                "Tenants that are measured separately, besides those that limits name.",
                gauge(limits.LIMIT_TENANTS, "instance"),
            ),
            panel(
                "Audit log",
                "Records in the audit log, and those that could not be written.",
                gauge(limits.LIMIT_AUDIT_RECORDS, "instance").named("records"),
                increase(limits.LIMIT_AUDIT_FAILURES, "instance", window="1h").named("failures in an hour"),
            ),
            panel(
                "Requests of stages",
                "Requests of a stage that one request of an ensemble causes at most.",
                gauge(limits.STAGE_REQUESTS, "model", "stage", operator="max"),
            ),
        ),
    ),
    _variables(limits.REQUEST_RATE),
)

_LANGUAGE_MODEL = "model_name"


def _quantiles(title: str, metric: MetricDefinition, text: str) -> DashboardPanel:
    queries = (quantile(level, metric, _LANGUAGE_MODEL).named(name) for level, name in _LEVELS)
    return panel(title, text, *queries, mean(metric, _LANGUAGE_MODEL).named("average"))


def _lengths(title: str, metric: MetricDefinition, text: str) -> DashboardPanel:
    return panel(title, text, buckets(metric), kind="heatmap", bucket_unit=metric.unit, interval="1m")


LANGUAGE_MODELS = GrafanaDashboard(
    "conch-llm",
    "Conch / Language models",
    "Latency, tokens and KV cache of language models; also for servers of vLLM.",
    (
        row(
            "Latency",
            _quantiles(
                "Time to first token", vllm.TIME_TO_FIRST_TOKEN, "From the receipt of a request to its first token."
            ),
            _quantiles("Inter-token latency", vllm.INTER_TOKEN_LATENCY, "Between two steps with tokens of a request."),
            _quantiles("Request latency", vllm.REQUEST_LATENCY, "From the receipt of a request to its end."),
            _quantiles(
                "Time in the queue", vllm.QUEUE_TIME, "From the receipt of a request to the engine's first step."
            ),
            _quantiles("Prefill", vllm.PREFILL_TIME, "From the engine's first step for a request to its first token."),
            _quantiles("Decode", vllm.DECODE_TIME, "From a request's first token to its last."),
        ),
        row(
            "Load",
            panel(
                "Requests in the engine",
                "Requests that run and that wait.",
                gauge(vllm.REQUESTS_RUNNING, _LANGUAGE_MODEL).named("running"),
                gauge(vllm.REQUESTS_WAITING, _LANGUAGE_MODEL).named("waiting"),
            ),
            panel(
                "Tokens",
                "Tokens per second of prompts and answers.",
                rate(vllm.PROMPT_TOKENS, _LANGUAGE_MODEL).named("prompt"),
                rate(vllm.GENERATION_TOKENS, _LANGUAGE_MODEL).named("generated"),
            ),
            panel(
                "Finished by reason",
                "Finished sequences per second.",
                rate(vllm.REQUEST_SUCCESS, _LANGUAGE_MODEL, "finished_reason", unit="requests_per_second"),
            ),
        ),
        row(
            "KV cache",
            panel(
                "KV cache in use",
                "Share of the KV cache in use. Near 1, requests wait or are preempted.",
                gauge(vllm.KV_CACHE_USAGE, _LANGUAGE_MODEL, operator="max"),
                steps=((0, "green"), (0.85, "orange"), (0.95, "red")),
            ),
            panel(
                "Prefix cache",
                "Share of the tokens of prompts that were found in the prefix cache. Only vLLM reports it.",
                ratio(rate(vllm.PREFIX_CACHE_HITS, _LANGUAGE_MODEL), rate(vllm.PREFIX_CACHE_QUERIES, _LANGUAGE_MODEL)),
            ),
            panel(
                "Preemptions",
                "Requests per second that lost their place in the KV cache.",
                rate(vllm.PREEMPTIONS, _LANGUAGE_MODEL),
            ),
        ),
        row(
            "Lengths",
            _lengths("Prompts", vllm.PROMPT_LENGTH, "Requests by the tokens of their prompt."),
            _lengths("Answers", vllm.GENERATION_LENGTH, "Requests by the generated tokens."),
            panel(
                "Time per output token",
                "Average time from the first token to the last, per token.",
                mean(vllm.TIME_PER_OUTPUT_TOKEN, _LANGUAGE_MODEL),
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
