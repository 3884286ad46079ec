"""Cases of monitors, autoscalers, disruption budget, network policy and limits."""

from typing import Any

_RATIO = "triton:queue_compute:ratio"
_CUSTOM = {
    "type": "External",
    "external": {"metric": {"name": "sqs_messages"}, "target": {"type": "AverageValue", "averageValue": "30"}},
}
_CRON = {
    "type": "cron",
    "metadata": {"timezone": "UTC", "start": "0 8 * * *", "end": "0 18 * * *", "desiredReplicas": "1"},
}

CASES: dict[str, dict[str, Any]] = {
    "inference pool of a language model": {"inferencePool": {"enabled": True}},
    "inference pool of other models": {
        "inferencePool": {
            "enabled": True,
            "metrics": "triton",
            "endpointPicker": "picker",
            "endpointPickerPort": 9003,
            "failureMode": "FailOpen",
        }
    },
    "pod monitor and hpa": {
        "monitoring": {"enabled": True, "dashboards": {"folder": "", "labels": {"grafana_dashboard": "yes"}}},
        "autoscaling": {"type": "hpa"},
    },
    "service monitor": {
        "monitoring": {
            "enabled": True,
            "monitor": "ServiceMonitor",
            "labels": {"release": "kps", "team": "vision"},
            "intervalSeconds": 30,
            "scrapeTimeoutSeconds": 30,
            "metricRelabelings": [
                {"sourceLabels": ["__name__"], "regex": "conch_request_duration_seconds_bucket", "action": "drop"}
            ],
            "rules": {"enabled": False},
            "dashboards": {"enabled": False},
        }
    },
    "rules only": {
        "monitoring": {
            "enabled": True,
            "monitor": "none",
            "dashboards": {"enabled": False},
            "rules": {
                "intervalSeconds": 15,
                "thresholds": {
                    "queueTime": 0.25,
                    "oldestRequest": 30,
                    "queueComputeRatio": 1.5,
                    "failureRatio": 0.02,
                    "objective": 0.95,
                    "p99": 2.5,
                    "utilization": 0.8,
                    "scaleUp": 40,
                    "restarts": 5,
                    "unready": 3690,
                    "kvCache": 0.85,
                    "waitingRequests": 25,
                    "ttft": 0.5,
                    "gpuTemperature": 75,
                    "gpuIdle": 0.1,
                    "gpuIdleTime": 90000,
                    "gpuMemory": 0.99,
                },
            },
        }
    },
    "hpa with several metrics": {
        "autoscaling": {
            "type": "hpa",
            "minReplicas": 2,
            "maxReplicas": 10,
            "metrics": [
                {"name": _RATIO, "averageValue": "750m"},
                {"name": "nv_inference_pending_request_count", "averageValue": 8},
                {"averageValue": "2"},
                {"name": "conch_requests_per_second"},
            ],
            "resources": [{"name": "cpu", "averageUtilization": 70}, {"name": "memory"}, {"averageUtilization": 60}],
            "customMetrics": [_CUSTOM],
            "behavior": {
                "scaleUp": {"stabilizationWindowSeconds": 30},
                "scaleDown": {"selectPolicy": "Disabled", "stabilizationWindowSeconds": None},
            },
            "adapter": {"configMap": False},
        },
        "disruptionBudget": {"minAvailable": "50%", "maxUnavailable": ""},
    },
    "keda": {"autoscaling": {"type": "keda"}},
    "keda of a StatefulSet": {"autoscaling": {"type": "keda"}, "workload": {"kind": "StatefulSet"}},
    "keda with everything": {
        "autoscaling": {
            "type": "keda",
            "minReplicas": 0,
            "metrics": [
                {"name": _RATIO, "averageValue": "1500m"},
                {"averageValue": "0.5"},
                {"averageValue": 12},
                {"name": "vllm:kv_cache_usage_perc"},
                {},
            ],
            "resources": [{"name": "cpu"}],
            "keda": {
                "serverAddress": "https://prometheus.example.org",
                "pollingInterval": 10,
                "coldStartSeconds": 40,
                "activationThreshold": "500m",
                "prediction": {"enabled": True, "metric": "conch_requests_per_second", "averageValue": "20"},
                "fallback": {"failureThreshold": 5, "replicas": 3},
                "authentication": {"mode": "basic", "secretName": "prometheus"},
                "triggers": [_CRON],
            },
        },
        "disruptionBudget": {"enabled": False},
    },
    "keda with explicit times": {
        "autoscaling": {
            "type": "keda",
            "metrics": [],
            "keda": {
                "coldStartSeconds": 20,
                "cooldownPeriod": 900,
                "prediction": {"enabled": True, "horizonSeconds": 120, "windowSeconds": 600},
                "authentication": {"mode": "tls", "secretName": "prometheus"},
            },
        },
    },
    "keda with a bearer token": {
        "autoscaling": {"type": "keda", "keda": {"authentication": {"mode": "bearer", "secretName": "prometheus"}}},
    },
    "network policy": {
        "networkPolicy": {
            "enabled": True,
            "clients": [{"namespaceSelector": {"matchLabels": {"team": "shop"}}}, {"podSelector": {}}],
            "metricsNamespace": "observability",
            "egress": {
                "enabled": True,
                "rules": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}], "ports": [{"protocol": "TCP", "port": 443}]}],
            },
        },
        "disruptionBudget": {"minAvailable": 1, "maxUnavailable": ""},
        "replicaCount": 2,
    },
    "network policy of the namespace": {"networkPolicy": {"enabled": True}},
    "network policy with DNS only": {"networkPolicy": {"enabled": True, "egress": {"enabled": True}}},
    "limits": {"limits": {"maxQps": 80, "enforced": True}},
    "shared limits": {
        "limits": {
            "maxTokensPerSecond": 2000000,
            "shared": True,
            "entries": [{"model": "a<b", "requests_per_second": 10}],
        }
    },
}
