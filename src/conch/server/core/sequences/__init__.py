"""Sequence batching: direct and oldest."""
