"""Deployments: typed values, and what they become: Kubernetes objects, compose files, configurations. Pure."""
