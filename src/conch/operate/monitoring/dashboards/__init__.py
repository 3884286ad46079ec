"""Grafana dashboards: `dashboards.yml` declares panels and queries; their JSON and ConfigMaps."""
