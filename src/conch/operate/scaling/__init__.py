"""Autoscaling as Kubernetes and KEDA do it: their algorithms, traffic, and simulations of both. Pure."""
