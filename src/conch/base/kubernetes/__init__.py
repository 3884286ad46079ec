"""Kubernetes: the client of the API server, and objects as they were read."""
