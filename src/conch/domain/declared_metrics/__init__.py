"""Metrics that the file of `--metrics-config=custom_metrics=FILE` declares: expressions over each request."""
