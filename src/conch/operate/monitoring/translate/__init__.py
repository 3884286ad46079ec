"""Translate queries, dashboards and rules between the metric names of DCGM, Triton, vLLM, OpenTelemetry and Conch."""
