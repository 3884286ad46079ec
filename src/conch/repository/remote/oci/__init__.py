"""Repositories in OCI registries."""
