from triton_python_backend_utils import MetricFamily, Metric

class QpsGauge(MetricFamily):
    name = "my_qps_threshold"
    description = "自定义业务 QPS 阈值"
    kind = "gauge"  # 用 gauge 而非 counter,方便直接 set
