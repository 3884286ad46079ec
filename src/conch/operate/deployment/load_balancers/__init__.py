"""Configurations of load balancers in front of replicas: one typed description, one module per load balancer."""
