"""Limits of requests and tokens per second: windows, precedence, sources, and the audit log of changes."""
