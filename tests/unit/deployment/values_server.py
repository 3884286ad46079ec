"""Cases of the server's own objects."""

from typing import Any

DIGEST = "sha256:" + "0123456789abcdef" * 4

CASES: dict[str, dict[str, Any]] = {
    "image by tag": {"image": {"tag": "1.2"}, "replicaCount": 0},
    "image by digest": {"image": {"digest": DIGEST, "pullPolicy": "Always"}},
    "services": {
        "service": {
            "type": "LoadBalancer",
            "httpPort": 80,
            "labels": {"team": "vision"},
            "annotations": {"a": "true"},
            "spec": {"externalTrafficPolicy": "Local"},
        },
        "metricsService": {"port": 9090, "labels": {"scraped": "yes"}, "annotations": {"b": "1"}},
    },
}
