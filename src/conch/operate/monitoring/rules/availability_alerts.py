"""Alerts about what is dead, restarting, unready or unreachable: servers, models, exporters, tunnels, receivers."""

from conch.operate.monitoring.promql import LabelMatcher, Selector, render
from conch.operate.monitoring.rules.rule import AlertingRule, InputSeries, Proof, RuleGroup, counter, gauge
from conch.operate.monitoring.rules.serving_alerts import M
from conch.operate.monitoring.rules.thresholds import Thresholds

_MODEL = "model {{ $labels.model }} version {{ $labels.version }}"
_TARGET = {"job": "conch", "instance": "a:8002"}


def availability_alerts(limits: Thresholds, jobs: str) -> RuleGroup:
    """Return the alerts about availability. `jobs` is a regular expression of the scrape jobs of Conch."""
    return RuleGroup(
        "conch-availability",
        (
            AlertingRule(
                "ConchTargetDown",
                "critical",
                f"{render(Selector('up', (LabelMatcher('job', '=~', jobs),)))} == 0",
                60,
                "{{ $labels.instance }} of job {{ $labels.job }} does not answer scrapes.",
                "Check the process, its metrics port and the network between Prometheus and it.",
                (
                    Proof("down", (gauge("up", _TARGET, (1, 60), (0, 120)),), 150, 1),
                    Proof("one scrape failed", (gauge("up", _TARGET, (1, 60), (0, 15), (1, 120)),), 150, 0),
                    Proof("another job is down", (gauge("up", {**_TARGET, "job": "node"}, (0, 180)),), 150, 0),
                ),
            ),
            _unready(limits),
            _restarting(limits),
            AlertingRule(
                "ConchModelStuck",
                "critical",
                "sum by (model, version) (conch_queue_depth) > 0 unless"
                " sum by (model, version) (rate(nv_inference_exec_count[5m])) > 0",
                300,
                f"Requests of {_MODEL} wait, and it has executed none for five minutes.",
                "The instances hang or are dead; reload the model, and look for its processes in the log.",
                (
                    Proof("stuck", (gauge("conch_queue_depth", M, (3, 720)), _executions(720, 0)), 660, 1),
                    Proof("slow", (gauge("conch_queue_depth", M, (3, 720)), _executions(720, 0.01)), 660, 0),
                    Proof("idle", (gauge("conch_queue_depth", M, (0, 720)), _executions(720, 0)), 660, 0),
                ),
            ),
            *_helpers_down(),
        ),
    )


def _executions(length_s: float, per_s: float) -> InputSeries:
    return counter("nv_inference_exec_count", M, (per_s, length_s))


def _unready(limits: Thresholds) -> AlertingRule:
    for_s = limits.unready
    metric = "conch_model_ready"
    return AlertingRule(
        "ConchModelUnready",
        "critical",
        f"{metric} == 0",
        for_s,
        f"{_MODEL} is not ready on {{{{ $labels.instance }}}}.",
        "The log of the server has the reason; conch repo list shows the state of each model.",
        (
            Proof("unready", (gauge(metric, M, (1, 60), (0, for_s + 60)),), for_s + 90, 1),
            Proof("loads in time", (gauge(metric, M, (0, for_s - 15), (1, 120)),), for_s + 60, 0),
            Proof("ready", (gauge(metric, M, (1, for_s + 120)),), for_s + 90, 0),
        ),
    )


def _restarting(limits: Thresholds) -> AlertingRule:
    count = limits.restarts
    metric = "conch_process_restarts_total"
    return AlertingRule(
        "ConchModelRestarting",
        "warning",
        # The difference instead of an increase, which extrapolates: a count equal to the threshold is not an alert.
        f"{metric} - ({metric} offset 10m) > {count:g} or ({metric} unless {metric} offset 10m) > {count:g}",
        0,
        f"Processes of {_MODEL} were restarted {{{{ $value }}}} times in ten minutes.",
        "The log has the signal or the error of each exit.",
        (
            Proof("restarts", (gauge(metric, M, (4, 600), (4 + count + 1, 300)),), 720, 1),
            Proof("one fewer", (gauge(metric, M, (4, 600), (4 + count, 300)),), 720, 0),
            Proof("restarts since the first scrape", (gauge(metric, M, (0, 15), (count + 1, 300)),), 300, 1),
            Proof("long ago", (gauge(metric, M, (4, 60), (4 + count + 1, 900)),), 900, 0),
        ),
    )


def _helpers_down() -> tuple[AlertingRule, ...]:
    collector, tunnel = {**_TARGET, "vendor": "nvidia"}, {**_TARGET, "target": "gpu1"}
    device = {**collector, "device": "nvidia0", "uuid": "GPU-1", "name": "H100"}
    receiver, source = {**_TARGET, "target": "dingtalk"}, {**_TARGET, "source": "kubernetes"}
    return (
        _is_zero(
            "ConchAcceleratorCollectorDown",
            "conch_accelerator_collector_up",
            collector,
            120,
            "{{ $labels.instance }} has no samples of accelerators (vendor: {{ $labels.vendor }}).",
            "The log of the exporter has the error of the driver, or the driver or tool that it did not find.",
        ),
        _is_zero(
            "ConchAcceleratorLost",
            "conch_accelerator_device_up",
            device,
            60,
            "{{ $labels.name }} {{ $labels.device }} on {{ $labels.instance }} no longer answers.",
            "Move its models; the kernel log has the last XID. A lost GPU needs a restart of the node.",
        ),
        _is_zero(
            "ConchTunnelDown",
            "conch_tunnel_up",
            tunnel,
            120,
            "The tunnel to {{ $labels.target }} is down.",
            "conch_tunnel_failures_total has the reasons; a changed host key is refused until it is accepted.",
        ),
        _is_zero(
            "ConchLimitSourceDown",
            "conch_limit_source_up",
            source,
            120,
            "The source {{ $labels.source }} of limits is unreachable; the last limits stay in force.",
            "Check the file or the Kubernetes API server.",
        ),
        AlertingRule(
            "ConchAlertsUndelivered",
            "warning",
            "min_over_time(conch_alerts_queued[10m]) > 0",
            300,
            "Alerts for {{ $labels.target }} have waited for more than ten minutes.",
            "conch_alerts_failed_attempts_total counts the attempts; the log of the receiver has the answers.",
            (
                Proof("waiting", (gauge("conch_alerts_queued", receiver, (0, 60), (1, 1200)),), 1200, 1),
                Proof(
                    "delivered once in between",
                    (gauge("conch_alerts_queued", receiver, (1, 540), (0, 15), (1, 540)),),
                    1080,
                    0,
                ),
            ),
        ),
    )


def _is_zero(name: str, metric: str, labels: dict[str, str], for_s: float, summary: str, remedy: str) -> AlertingRule:
    return AlertingRule(
        name,
        "warning",
        f"{metric} == 0",
        for_s,
        summary,
        remedy,
        (
            Proof("down", (gauge(metric, labels, (1, 60), (0, for_s + 60)),), for_s + 90, 1),
            Proof("back in time", (gauge(metric, labels, (0, for_s - 15), (1, 120)),), for_s + 60, 0),
        ),
    )
