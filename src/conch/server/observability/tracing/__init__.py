"""Traces of requests, trace files, OpenTelemetry and the request log."""
