"""The requests that a benchmark sends."""
