"""Checks of files for monitoring: alerting rules, dashboards, monitors of the Prometheus operator, autoscalers."""
