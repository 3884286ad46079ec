"""Values of autoscaling, and of what keeps replicas."""
