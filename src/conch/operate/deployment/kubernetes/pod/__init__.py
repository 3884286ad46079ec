"""The workload, its pods and what they need: container, volumes, devices, service account, limits."""
