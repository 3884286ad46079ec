"""The algorithm of the HorizontalPodAutoscaler (autoscaling/v2) as kube-controller-manager runs it. Pure."""
