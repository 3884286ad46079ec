"""Kubernetes objects of a deployment: one module per kind of object, each a function from values to a mapping."""
