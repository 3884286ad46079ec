"""Why an autoscaler does not scale, or scales only up: the way of a metric from the pods to the autoscaler. Pure."""
