"""Trials on a running server: load a configuration, measure, record."""
