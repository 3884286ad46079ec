"""Prometheus, and the API by which an autoscaler reads metrics from it."""
