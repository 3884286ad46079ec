"""Metrics, statistics and their exposition."""
