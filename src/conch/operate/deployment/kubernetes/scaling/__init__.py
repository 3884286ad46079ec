"""What changes and keeps the number of replicas: autoscalers, their metrics, the disruption budget."""
