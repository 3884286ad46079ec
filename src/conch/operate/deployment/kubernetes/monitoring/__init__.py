"""Objects of the Prometheus operator and of Grafana."""
