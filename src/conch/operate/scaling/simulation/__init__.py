"""Simulation of autoscaled replicas over a day: queues, start of replicas, what Prometheus sees, faults. Pure."""
