"""Replicas as local processes behind a real proxy and a real Prometheus, to show and test scaling policies."""
