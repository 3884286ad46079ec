"""Metrics that a file declares: families with expressions over each request (`--metrics-config=custom_metrics=FILE`)."""
