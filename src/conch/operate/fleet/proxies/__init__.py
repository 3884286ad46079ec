"""Proxies in front of the replicas: one module each."""
