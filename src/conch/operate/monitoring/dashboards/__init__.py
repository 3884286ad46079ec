"""Grafana dashboards: tables of panels whose queries are built from the metric catalogue, and their JSON."""
