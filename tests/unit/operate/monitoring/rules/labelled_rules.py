"""Alerts, labelled by what they do: never fire, misfire, or are healthy. Each has an expression and a hold time.

promtool accepts all of them. `NEVER_MISSED` and `MISFIRING_MISSED` are those that the analysis does not find.
"""

NEVER: dict[str, list[tuple[str, str]]] = {
    "metric that no exporter has": [
        ("DCGM_FI_DEV_FB_TOTAL > 40000", "5m"),
        ("avg(DCGM_FI_DEV_FB_USED / DCGM_FI_DEV_FB_TOTAL) > 0.9", "5m"),
        ("conch_queue_length > 10", "5m"),
        ("rate(nv_inference_requests_success[5m]) > 100", "5m"),
    ],
    "counter without _total": [
        ("rate(vllm:request_success[5m]) == 0", "5m"),
        ("increase(conch_process_restarts[10m]) > 3", "5m"),
    ],
    "histogram without a suffix": [("conch_request_duration_seconds > 1", "5m")],
    "label of another exporter": [
        ('nv_gpu_utilization{UUID="GPU-1"} > 0.9', "5m"),
        ('DCGM_FI_DEV_GPU_UTIL{gpu_uuid="GPU-1"} > 90', "5m"),
        ('nv_inference_request_success{model_name="resnet", modelx="x"} > 0', "5m"),
    ],
    "value that a label never has": [
        ('nv_inference_request_failure{reason="TIMEOUT"} > 5', "5m"),
        ('kube_pod_status_phase{phase="Crashed"} == 1', "5m"),
        ('kube_node_status_condition{condition="Ready", status="False"} == 1', "5m"),
        ('ALERTS{alertstate="fired"} == 1', "5m"),
    ],
    "matchers that exclude each other": [
        ('http_requests_total{code="500", code=~"2.."} > 0', "5m"),
        ('rate(http_requests_total{code=~"5..", code!~"5.."}[5m]) > 0', "5m"),
        ('sum(rate(http_requests_total{handler!~".*"}[5m])) > 0', "5m"),
    ],
    "ratio above 1": [
        ('sum(rate(http_requests_total{code=~"5.."}[5m])) / sum(rate(http_requests_total[5m])) > 5', "5m"),
        ("1 - node_filesystem_avail_bytes / node_filesystem_size_bytes > 90", "5m"),
        ('count(up{job="api"} == 0) / count(up{job="api"}) > 50', "5m"),
        ("conch_accelerator_utilization_ratio > 90", "5m"),
        ("rate(a_errors_total[5m]) / (rate(a_errors_total[5m]) + rate(a_successes_total[5m])) > 10", "5m"),
    ],
    "percentage above 100": [
        ("DCGM_FI_DEV_GPU_UTIL > 100", "5m"),
        ("100 * node_memory_MemAvailable_bytes / node_memory_MemTotal_bytes > 100", "5m"),
        ('100 * sum(rate(x_total{code="500"}[5m])) / sum(rate(x_total[5m])) > 100', "5m"),
    ],
    "value below 0": [
        ("rate(http_requests_total[5m]) < 0", "5m"),
        ("1 - sum(rate(x_total{ok='no'}[5m])) / sum(rate(x_total[5m])) < 0", "5m"),
        ("process_resident_memory_bytes < 0", "5m"),
    ],
    "state above 1": [("up > 1", "5m"), ("mysql_up == 2", "5m"), ("probe_success > 1", "5m")],
    "count of nothing": [
        ('count(up{job="api"} == 1) == 0', "5m"),
        ("count(node_load1 > 100) < 1", "5m"),
    ],
    "absence of what is always there": [
        ("absent(vector(1))", "5m"),
        ("absent(sum(rate(http_requests_total[5m])) or vector(0)) and on() up == 1", "5m"),
        ("absent(up) == 0", "5m"),
        ('absent(up{job="api"}) and up{job="api"} == 0', "5m"),
        ("absent(job:requests:rate5m) > 1", "5m"),
    ],
    "sides with other label values": [
        ('rate(x_total{job="api"}[5m]) / rate(y_total{job="db"}[5m]) > 2', "5m"),
        ('node_load1{instance="a"} and node_load5{instance="b"} > 3', "5m"),
        ('requests_a{mode="x"} > requests_b{mode="y"}', "5m"),
    ],
    "sides with other labels": [
        ("sum by (instance) (rate(x_total[5m])) / sum by (job) (rate(y_total[5m])) > 0.5", "5m"),
        ("sum by (pod) (container_memory_rss) / sum(container_spec_memory_limit_bytes) > 0.9", "5m"),
        ("node_load1 > sum(machine_cpu_cores)", "5m"),
        ("requests_in_flight > count(up == 1)", "5m"),
    ],
    "on() with a label that one side lacks": [
        ("sum(rate(x_total[5m])) / on(instance) rate(y_total[5m]) > 0.5", "5m"),
        ("sum by (job) (x_queue) > on(pod) group_right() y_limit", "5m"),
    ],
    "conditions that exclude each other": [
        ("node_load1 > 10 < 5", "5m"),
        ("node_load1 > 10 and node_load1 < 5", "5m"),
        ("time() - last_run_timestamp_seconds > 3600 < 60", "5m"),
    ],
    "sides that are the same": [
        ("node_load1 unless node_load1", "5m"),
        ("node_load1 != node_load1", "5m"),
        ("rate(x_total[5m]) - rate(x_total[5m]) > 0", "5m"),
    ],
    "range of less than a scrape": [("rate(http_requests_total[10s]) > 5", "5m"), ("increase(x_total[5s]) > 0", "0s")],
    "quantile without buckets": [
        ("histogram_quantile(0.99, sum(rate(x_seconds_bucket[5m]))) > 1", "5m"),
        ("histogram_quantile(0.99, sum by (job) (rate(x_seconds_bucket[5m]))) > 1", "5m"),
        ("histogram_quantile(0.99, rate(x_seconds_sum[5m])) > 1", "5m"),
    ],
    "time that does not exist": [("hour() > 23", "5m"), ("day_of_week() == 7", "5m"), ("month() == 13", "5m")],
    "comparison with NaN": [("node_load1 == NaN", "5m")],
    "temperature of no device": [("DCGM_FI_DEV_GPU_TEMP > 900", "5m")],
    "functions with a bounded result": [
        ("clamp_max(node_load1, 5) > 5", "5m"),
        ("sgn(node_load1) > 1", "5m"),
        ("changes(node_load1[1h]) < 0", "5m"),
        ("stddev(node_load1) < 0", "5m"),
    ],
}
NEVER_MISSED: list[tuple[str, str]] = [
    ("node_cpu_seconds > 5", "5m"),  # without _total; nothing is known of other exporters' metrics
    ("node_load1 > 10 and on(instance) node_load1 < 5", "5m"),
]

MISFIRING: dict[str, list[tuple[str, str | None]]] = {
    "raw counter": [
        ("nv_inference_request_failure > 10", "5m"),
        ("sum by (model) (nv_inference_request_success) > 1000", "5m"),
        ("http_errors_total > 50", "5m"),
        ("conch_request_duration_seconds_count > 1000", "5m"),
        ("avg_over_time(nv_inference_request_failure[5m]) > 3", "5m"),
        ("max_over_time(http_errors_total[1h]) > 5", "5m"),
        ("histogram_quantile(0.99, sum by (le) (conch_request_duration_seconds_bucket)) > 1", "5m"),
        ("histogram_quantile(0.95, http_request_duration_seconds_bucket) > 5", "5m"),
    ],
    "counter function of a gauge": [
        ("rate(nv_inference_pending_request_count[1m]) > 5", "5m"),
        ("increase(conch_queue_depth[5m]) > 10", "5m"),
        ("resets(conch_queue_depth[1h]) > 3", "5m"),
    ],
    "gauge function of a counter": [
        ("delta(nv_inference_request_success[5m]) < 1", "5m"),
        ("changes(nv_inference_request_failure[10m]) > 3", "5m"),
        ("deriv(nv_inference_request_success[5m]) == 0", "5m"),
    ],
    "rate of a sum": [("rate(sum(http_requests_total)[5m:1m]) > 100", "5m")],
    "flapping without for": [
        ("up == 0", None),
        ('min(up{job="conch"}) == 0', None),
        ("conch_model_ready == 0", None),
        ("probe_success == 0", None),
        ("irate(http_requests_total[1m]) > 1000", None),
    ],
    "changes of a state": [("changes(up[10m]) > 0", "0s"), ("changes(conch_model_ready[5m]) > 1", "0s")],
    "absence at start": [('absent(up{job="conch"})', None)],
    "no comparison": [
        ("rate(http_requests_total{code='500'}[5m])", "5m"),
        ("conch_queue_depth", "5m"),
        ("increase(x_errors_total[5m])", "5m"),
    ],
    "bool": [("node_load1 > bool 5", "5m"), ("conch_queue_depth > bool 5", "5m")],
    "exact result of an extrapolation": [("increase(x_total[5m]) == 1", "0s")],
    "share compared with a percentage": [
        ("DCGM_FI_DEV_GPU_UTIL > 0.9", "5m"),
        ("node_filesystem_avail_bytes / node_filesystem_size_bytes < 10", "5m"),
        ('sum(rate(x_total{code="200"}[5m])) / sum(rate(x_total[5m])) < 99', "5m"),
        ("conch_accelerator_utilization_ratio < 30", "5m"),
    ],
    "milliseconds of a metric in seconds": [
        ("histogram_quantile(0.99, sum by (le) (rate(http_request_duration_seconds_bucket[5m]))) > 500", "5m"),
    ],
    "window of few samples": [
        ("increase(x_total[20s]) > 0", "0s"),
        ("rate(nv_inference_request_success[25s]) > 5", "5m"),
    ],
    "hold time longer than the window": [("increase(x_restarts_total[5m]) > 0", "10m")],
    "quantile of quantiles": [
        ('avg(go_gc_duration_seconds{quantile="0.75"}) > 1', "5m"),
        ("sum(histogram_quantile(0.9, rate(x_seconds_bucket[5m]))) > 1", "5m"),
        ("histogram_quantile(99, sum by (le) (rate(x_seconds_bucket[5m]))) > 1", "5m"),
    ],
    "label that does not exist": [
        ("sum by (model_id_x) (conch_queue_depth) > 10", "5m"),
        ('label_replace(conch_queue_depth, "a", "$1", "b", "(.+)") > 1', "5m"),
    ],
    "absence of a misspelt metric": [("absent(conch_model_redy)", "5m")],
}
MISFIRING_MISSED: list[tuple[str, str | None]] = [
    ("predict_linear(node_load1[1h], 86400) > 5", "0s"),  # of a metric without a trend
    ("sum(rate(x_total[5m])) < 1", "5m"),  # also at night
    ("time() - backup_last_success_timestamp_seconds > 86400", "0s"),  # 0 before the first backup
    ("avg(up) < 0.5", "5m"),  # of all jobs
    ("(x - x offset 1h) / x offset 1h > 0.5", "5m"),  # x can be 0
]

HEALTHY: list[tuple[str, str | None]] = [
    ("up == 0", "2m"),
    ("up == 0", "0m"),
    ('absent(up{job="conch"})', "1m"),
    ("vector(1)", None),
    ("node_load1 > 4", None),
    ("mysql_up == 0", "0m"),
    ('sum(rate(http_requests_total{code=~"5.."}[5m])) / sum(rate(http_requests_total[5m])) > 0.05', "5m"),
    ('100 * sum(rate(x_total{code="500"}[5m])) / sum(rate(x_total[5m])) > 0.5', "5m"),
    ("(1 - node_filesystem_avail_bytes / node_filesystem_size_bytes) * 100 > 90", "5m"),
    ("node_memory_MemAvailable_bytes / node_memory_MemTotal_bytes < 0.1", "5m"),
    ("100 - 100 * node_memory_MemAvailable_bytes / node_memory_MemTotal_bytes > 95", "5m"),
    ("predict_linear(node_filesystem_avail_bytes[6h], 86400) < 0", "1h"),
    ("increase(kube_pod_container_status_restarts_total[1h]) > 3", "0m"),
    ("changes(process_start_time_seconds[15m]) > 2", "0m"),
    ("histogram_quantile(0.99, sum by (le) (rate(http_request_duration_seconds_bucket[5m]))) > 0.5", "5m"),
    ("histogram_quantile(0.01, sum by (job, le) (rate(cert_expiration_seconds_bucket[5m]))) < 604800", "0m"),
    ("time() - backup_last_success_timestamp_seconds > 86400", "10m"),
    ("node_load1 * on(instance) group_left(nodename) node_uname_info > 10", "5m"),
    ("sum by (job) (up) == 0", "1m"),
    ("up == 0 unless on(job) sum by (job) (up) == 0", "1m"),
    ("count by (job) (up == 0) / count by (job) (up) > 0.5", "5m"),
    ("count(up == 1) < 3", "5m"),
    ("(count(up == 1) or vector(0)) < 1", "5m"),
    ('kube_pod_status_phase{phase=~"Pending|Unknown"} > 0', "15m"),
    ('kube_node_status_condition{condition="Ready", status="true"} == 0', "10m"),
    ("kube_deployment_spec_replicas != kube_deployment_status_replicas_available", "10m"),
    ("kube_statefulset_replicas != kube_statefulset_status_replicas_ready > 0", "1m"),
    ("rate(x_sum[5m]) / rate(x_count[5m]) > 2", "5m"),
    ("avg_over_time(probe_duration_seconds[5m]) > 1", "1m"),
    ("probe_http_status_code <= 199 or probe_http_status_code >= 400", "1m"),
    ("3 <= round((probe_ssl_earliest_cert_expiry - time()) / 86400, 0.1) < 20", "0m"),
    ("max_over_time(threads_connected[1m]) / variables_max_connections * 100 > 80", "2m"),
    ("(replica_lag - replica_delay) and on(instance) replica_server_id > 0", "1m"),
    ("sum by (instance, job) (activity_count) > min by (instance, job) (settings_max_connections * 0.8)", "2m"),
    ("(dead_rows > 10000) / (live_rows + dead_rows) >= 0.1", "2m"),
    ("delta(connected_replicas[5m]) < 0", "0m"),
    ("count(count by (version) (x_build_info)) > 1", "1h"),
    ("sum(x_build_info) < 3", "5m"),
    ("abs(rate(x_total[5m]) - rate(x_total[5m] offset 1h)) > 25", "5m"),
    ("x_restarts_total - x_restarts_total offset 10m >= 1", "0m"),
    ("rate(x_total[15m]) / rate(x_total[1d]) > 2", "5m"),
    ("a_temp_celsius * ignoring(label) group_left(sensor) a_sensor_label{label!='x'} > 75", "5m"),
    ("quantile_over_time(0.9, node_load1[1h]) > 4", "5m"),
    ("min_over_time(queue_length[10m]) > 0", "0m"),
    ('latency{quantile="0.9"} / on(job, instance) latency{quantile="0.5"} > 3', "5m"),
    ("x_limit_sessions > 0 and x_sessions / x_limit_sessions > 0.8", "2m"),
    ("hour() > 8 and hour() < 18 and on() sum(rate(x_total[5m])) < 1", "5m"),
    ("DCGM_FI_DEV_GPU_TEMP > 85", "5m"),
    ("DCGM_FI_DEV_GPU_UTIL < 10", "1h"),
    ("DCGM_FI_DEV_XID_ERRORS > 0", "0m"),
    ("DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE) > 0.95", "5m"),
    ("avg by (gpu_uuid) (nv_gpu_utilization) > 0.95", "10m"),
    ("nv_gpu_memory_used_bytes / nv_gpu_memory_total_bytes > 0.9", "5m"),
    ("vllm:num_requests_waiting > 10", "2m"),
    ("vllm:kv_cache_usage_perc > 0.9", "2m"),
    ("sum by (model) (rate(nv_inference_request_failure[5m])) > 1", "2m"),
    ("conch_model_ready == 0", "2m"),
    ("rate(nv_inference_queue_duration_us[1m]) / rate(nv_inference_request_success[1m]) > 100000", "2m"),
    (
        'sum by (pod) (rate(x_total{mode="a"}[5m])) / ignoring(mode) sum by (pod) (rate(x_total{mode="b"}[5m])) > 2',
        "5m",
    ),
    ('x{job="a"} / on(instance) x{job="b"} > 2', "5m"),
    ("job:errors:ratio5m > 0.01 and job:errors:ratio1h > 0.01", "2m"),
    ("job:latency:p99 > on() group_left() slo:latency:limit", "2m"),
]
